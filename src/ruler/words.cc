#include "ruler/words.h"

namespace gsa::ruler {
namespace {

constexpr std::string_view kAdjectives =
    R"(able absent active agile airy alert alive alpine amber ample ancient angry annual anxious apt arctic ardent
arid ashen astute atomic austere avid awake aware awkward azure balmy bare bashful bitter bland blank bleak
blind blissful blond blunt bold bony boreal bossy brainy brave breezy brief bright brisk brittle broad
broken bronze bulky bumpy burly busy calm candid canny careful caring casual cautious central chalky cheap
cheery chief chilly chubby civic civil clammy classic clean clear clever clumsy coarse coastal cold colossal
comic common compact complex cool copious coral cordial cosmic costly cosy courtly crafty cranky creamy
crimson crisp crooked crude cruel crunchy cubic curious curly curved cyan daily dainty damp dapper daring
dark dashing deadly deaf dear decent deep defiant deft dense devout dim dire direct dirty distant dizzy
docile double drab drastic dreamy drowsy dry dual dull dusky dusty dutiful eager early earnest earthy easy
edgy eerie elastic elder elegant elusive eminent empty endless epic equal errant ethical exact exotic expert
extra fabled faint fair faithful false famous fancy far fast fatal faulty fearless feeble feisty fertile
fervent festive few fickle fierce fiery final fine firm fiscal fit fixed flaky flat flawless fleet flimsy
floral fluent fluffy fluid foggy fond foolish foreign formal fragile frail frank frantic free frequent fresh
friendly frigid frosty frozen frugal full funny furry fussy fuzzy gallant gaunt general generous gentle
genuine giant giddy gifted gigantic glad gleaming glib global gloomy glorious glossy golden good graceful
grand grateful grave gray greasy great greedy green grim gritty gross grumpy guilty gusty handsome handy
happy hardy harsh hasty haughty hazy healthy hearty heavy hefty helpful hidden hilly hoarse hollow holy
homely honest hopeful horned hostile huge humble humid hungry hushed husky icy ideal idle immense inborn
indigo inner innocent intact intense inward ironic ivory jaded jagged jaunty jealous jolly jovial joyful
juicy jumbo junior keen kind kingly knotty known lame lanky large late lavish lawful lazy leafy lean legal
level limber limp linear liquid literal little lively local lofty lonely long loose lost loud lovely low
loyal lucid lucky lunar lush mad magic main major manual many marble marine massive mature meager mean
measly meek mellow merry messy mighty mild milky minor minty misty mobile model modern modest moist moral
morose mossy muddy muggy mundane murky musical mute muted mystic naive narrow nasty native naval near neat
needy nervous neutral new nimble noble noisy nomadic normal northern nosy novel numb nutty oaken obese
oblong obscure obvious odd oily old olive opaque open optimal orange orderly organic ornate outer oval overt
pale partial passive pastel patchy patient peaceful pearly perky petty placid plain playful pleasant plucky
plump plush poetic polar polite poor popular portly posh potent precious precise pretty prickly primal prime
pristine private profound prompt proper proud prudent public puny pure purple puzzled quaint quick quiet
quirky radiant ragged rainy random rapid rare rash raw ready real rebel recent regal regular remote restful
rich rigid ripe robust rocky roomy rosy rotten rough round rowdy royal ruddy rude rugged rural rusty sacred
sad safe saline salty same sandy sane sassy savory scaly scant scarce scarlet scenic secret secure sedate
senior serene severe shabby shady shaggy shaky shallow sharp sheer shiny short shrewd shy silent silky silly
silver simple sincere single skilled sleek sleepy slender slim slimy slow sly small smart smoky smooth smug
snappy sneaky snowy snug sober social soft soggy solar solemn solid sonic sore sour southern spare sparse
spicy spiky spiral splendid spotless spotty spry square squat stable stale stark starry static steady steep
sterile stern sticky stiff still stony stormy stout strange strict strong stubborn sturdy subtle sudden
sullen sunken sunny super superb supple sure swampy sweet swift tacit tall tame tangy tardy tart tasty taut
teal tedious tender tense tepid terse thick thin thirsty thorny thrifty tidal tidy tight timely timid tiny
tired toasty tough toxic tragic tranquil tribal tricky trim tropic true trusty twin ugly ultimate unique
united upbeat upper upright urban urgent useful usual utter vacant vague vain valiant valid vast velvet
verbal vibrant vicious violet viral virtual vital vivid vocal void volatile warm wary wasteful watchful
watery wavy weak wealthy weary wee weekly weird western wet whimsical whole wicked wide wild willing wily
windy winged wintry wiry wise wistful witty wobbly woeful wooden woolly wordy worldly worn worthy wry yearly
yellow young youthful zany zealous zesty)";

constexpr std::string_view kNouns =
    R"(abbey acorn acre actor adobe aisle album alcove alley almond alphabet altar anchor anchovy angle ankle
antler anvil apple apricot apron aquarium arcade arch archer arena armor arrow artist ash aspen asphalt
atlas atom attic auction aunt author avenue avocado axle baboon bacon badge badger bagel bakery balcony
ballad ballet balloon bamboo banana bandage banjo banker banner barge barley barn baron barrel basil basin
basket bassoon bathtub baton battery bay beach beacon beaver bedrock beech beetle belfry bell bench berry
bicycle binder birch biscuit bishop bison blade blanket blazer blizzard blossom blouse boat bobcat bonfire
bonnet bookcase boot border botany bottle boulder bouquet bowl bowtie bracelet bramble branch brass bread
brick bride bridge broccoli brook broom brother bubble bucket buckle buffalo bugle builder bulb bunker
bureau burrow butcher butter button cabbage cabin cabinet cable cactus cafe cage cake calendar camel camera
campus canal canary candle candy cannon canoe canopy canteen canvas canyon captain caravan carbon cargo
carnival carpet carrot cart cartoon cascade cashew casino castle catalog cathedral cattle cavern cedar
ceiling celery cellar cello cement census cereal chain chalk chamber channel chapel chapter chariot cheese
cheetah chef cherry chess chestnut chicken chimney chisel choir cider cinema cinnamon circle circus citadel
citizen city clam clarinet classroom clay cliff climate clinic cloak clock closet cloud clover coal coat
cobbler cobra cockpit cocoa coconut coffee coffin coin collar college colony column comet compass composer
concert condor conductor copper cork cottage cotton couch council county courier cousin cowboy coyote crab
cradle crane crater crayon creek crescent cricket crocus crow crown cruiser crystal cuckoo cucumber cupboard
curtain cushion custard cyclone cymbal cypress dagger dahlia dairy daisy dam dancer dawn deacon deck deer
delta denim dentist depot desert desk dessert dew dial diamond diary diesel dingo dinner diploma ditch dock
doctor doll dolphin dome donkey door dove dragon drama drawer dresser drum duchess duck duet dune dusk dwarf
eagle easel echo eclipse eel eggplant elbow election elephant elevator elf elk elm ember emblem emerald
emperor empire engine envelope escort estate estuary evening fabric factory falcon family famine fan farm
farmer feather fence fender fennel fern ferret ferry festival fiddle field fig filter finch finger fir
fireplace fjord flagpole flame flamingo flannel flask fleece flint flock flood florist flour flower flute
foam folder forest forge fork fort fortress fossil fountain fox frame freckle freight friar fridge frog
frost fruit fudge funnel furnace gadget galaxy gallery galley garage garden garlic garnet gate gazelle gecko
genius geyser ghost gibbon ginger giraffe glacier glass glider globe glove glue goat goblet goggles goose
gopher gorge gorilla gosling granary granite grape grass gravel grocer grotto grove guard guava guest guitar
gulf gull gutter gym gypsum habit hail hallway hamlet hammer hammock hamster handle hangar harbor hare harp
hat hatchet hawk hazel heart hedge helmet hemlock herald herb hermit hero heron herring highway hill hinge
hippo hive hockey holly honey hood hoof hook horizon horn hornet horse hospital hostel hotel hound house
hull hunter hurdle hyena iceberg icicle igloo iguana index inlet insect iris iron island ivy jackal jacket
jaguar jam jar jasmine jaw jelly jersey jewel jigsaw jockey journal judge jug jungle juniper jury kayak kelp
kennel kernel kettle keyboard kidney kiosk kitchen kite kitten kiwi knapsack knee knife knight knuckle koala
label lace ladder lady lagoon lake lamb lamp lantern lapel larch lark laser lattice laundry lava lavender
lawn lawyer leaf leather ledge leek legend lemon lemur lentil leopard lettuce lever library lichen lilac
lily lime limestone linen lion lizard llama lobby lobster locket locust lodge loft log loom lotus lumber
lunch lupin lute lynx lyric macaw machine magnet magpie mahogany mailbox mallet mammoth mandolin mango manor
mansion mantle map maple marigold market marlin marmot marsh mascot mason mast mattress maze meadow medal
melody melon menu merchant mercury mermaid meteor metro midnight mill miner mink mint mirror mitten moat
molasses mole monarch monk monkey monsoon moon moor moose morning mosaic mosque moss moth motor mountain
mouse muffin mulberry mule museum mushroom musket mussel mustard myrtle napkin narwhal nebula neck necklace
nectar needle nephew nest nettle newt nickel niece night noodle noon notebook nugget nurse nutmeg oak oar
oasis oat oboe ocean octopus office omelet onion opal opera orbit orchard orchid organ osprey ostrich otter
outpost oven owl oyster paddle paddock page pagoda pail painter palace palm pancake panda panel panther
pantry papaya paper parade parchment park parlor parrot parsley parsnip pasta pasture path patio pavilion
pawn peach peacock peanut pear pearl pebble pecan pedal pelican pen pencil penguin peony pepper perch
perfume petal pheasant phoenix photo piano picnic pie pier pigeon pillar pillow pilot pine pioneer pipe
pirate pistachio piston pitcher planet plank plate plateau platform plaza plow plum plumber pocket poem poet
pollen pond pony poplar poppy porch porcupine port portrait postcard potato potter powder prairie prawn
primrose prince princess prism prison prune pudding puddle puffin pulley puma pumpkin pupil puppet puppy
puzzle pyramid python quail quarry quartz queen quilt quince quiver rabbit raccoon radar radio radish raft
railway rain raisin ranch ranger raven ravine razor reef reindeer relic reptile reservoir resin resort rhino
rhubarb ribbon rice rider ridge rifle ring river road robin robot rocket rodent roof rooster root rope rose
ruby rudder rug runner sack saddle sage sailor salad salmon saloon salt sandal sapphire satchel satin saucer
sausage savanna sawmill scale scarf school scooter scorpion scout screen script scroll sculptor sea seal
seaweed seed sequoia sergeant shadow shark shed sheep shelf shell sheriff shield shilling ship shirt shoe
shore shovel shrimp shrine shrub sidewalk signal silk sink siren sister skate skeleton sketch ski skillet
skunk sky slate sled sleigh slipper sloth smoke snail snake snow soap sock sofa soldier sonata song soup
spade sparrow spear sphere sphinx spider spinach spire sponge spoon spruce squash squid squirrel staircase
stallion stamp star statue steam steel stem stew stirrup stone stool stork stove straw stream street studio
submarine subway sugar suitcase sultan summit sun sunflower surgeon swallow swamp swan sweater sword symbol
syrup table tadpole tailor talon tandem tangerine tango tank tapestry taxi tea teacher teapot telescope
temple tennis tent termite terrace thicket thimble thistle throne thrush thumb thunder ticket tiger tile
timber tin toad toaster tobacco tomato tomb torch tornado tortoise totem toucan tower town tractor trail
train trapeze treasure tree trellis trench triangle trolley trombone trophy trout truck trumpet trunk tuba
tulip tuna tundra tunnel turban turbine turkey turnip turret turtle tutor twig umbrella uncle unicorn vacuum
valley valve vanilla vase vault veil vein verandah vessel vest viaduct village vine vinegar vineyard viola
violin viper visitor volcano vulture waffle wagon waiter wallet walnut walrus wardrobe warehouse warrior
wasp watch water waterfall wave wax weasel weaver wedge well whale wharf wheat wheel whip whisker whistle
widow wig willow windmill window wine wing winter wizard wolf wombat wood wool workshop wren wrist yacht yak
yam yard yarn yogurt zebra zeppelin zinc zipper zither)";

constexpr std::string_view kVerbs =
    R"(abandon absorb accept accuse achieve acquire adapt adjust admire admit adopt advise afford agree aim allow
amaze amuse announce annoy answer appear applaud approve argue arise arrange arrive ascend ask assemble
assert assign assist assume attach attack attempt attend attract avoid award bake balance ban banish bargain
bathe become beg begin behave believe belong bend betray bind bite blame bless blink boast boil borrow
bounce breathe breed bring browse bury buy calculate cancel capture carve cease celebrate challenge chase
chatter cheat cheer choose chop claim clap clarify cling collapse collect combine comfort command compare
compete complain compose conceal concede conclude confess confirm confuse connect conquer consider consist
console construct consult consume contain continue convert convince cook cooperate correct cough crawl
create creep criticize cultivate dare debate decay deceive decide declare decline decorate decrease dedicate
defeat defend define delay delegate deliver demand deny depart depend descend describe deserve destroy
detect develop devote differ dig digest discover discuss dislike dismiss display dissolve distract
distribute dive divide donate doubt drag dream drift drill drink drown earn educate elect embark embrace
emerge emit employ enable enchant encourage endure enforce engage enjoy enlarge enter entertain escape
establish estimate evaluate evolve examine exceed exchange excite exclude excuse exercise exist expand
expect explain explode explore export express extend fail fasten fetch fight finish flee flicker float
flourish follow forbid forget forgive formulate frighten gather gaze generate giggle glance glow govern grab
graze greet grind grow guess guide happen harvest hesitate hide hire hover hug hum hurry identify ignore
illustrate imagine imitate impress improve include increase indicate inform inhabit inherit inject inquire
insist inspect inspire install instruct insult insure intend interrupt invade invent invest invite involve
irritate join juggle justify kindle kneel knit know lament laugh launch learn lecture lend lick linger
listen loan lurk maintain manage manufacture march marvel mention merge migrate mingle moan modify mourn
multiply mumble murmur nag navigate neglect negotiate nod nominate nourish obey object observe obtain occupy
occur offend omit operate oppose organize overcome overlook owe participate paste pause perceive perform
permit persist persuade plead pluck polish ponder postpone pounce pour practice praise pray preach predict
prefer prepare prescribe preserve pretend prevail prevent proceed proclaim produce prohibit promise promote
pronounce propose protect protest provide publish pull punish purchase pursue quarrel quote radiate realize
recall receive recite recline recognize recommend recover recruit reduce refer reflect refuse regret reign
reject rejoice relate relax release rely remain remember remind remove renew repair repeat replace reply
request require rescue resemble resist resolve respond restore restrain retain retire retreat reveal revise
reward roam roar rotate rustle salute satisfy scatter scold scrape scratch scream scrub search seize select
separate shatter shiver shout shrink shuffle sigh sing sip slide slither smell smile snatch sneeze sniff
snore soar soothe sparkle speak spell spend spill splash sprinkle sprint squeeze stagger startle starve
steal stretch stride strive stroll struggle stumble submit succeed suffer suggest summon supply support
suppose surrender survive suspect swear swim tackle tease tempt thank thrive throw tickle tolerate trace
transform translate transmit travel treat tremble trespass trust twinkle understand undo unite unlock urge
utilize vanish venture visit wade waltz wander warn wash weep welcome whirl whisper whittle wink withdraw
wonder worry wrestle write yawn yearn yell yield zoom)";

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t end = text.find_first_of(" \n");
    words.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return words;
}

}  // namespace

const std::vector<std::string_view>& adjectives() {
  static const auto words = split(kAdjectives);
  return words;
}

const std::vector<std::string_view>& nouns() {
  static const auto words = split(kNouns);
  return words;
}

const std::vector<std::string_view>& verbs() {
  static const auto words = split(kVerbs);
  return words;
}

}  // namespace gsa::ruler
