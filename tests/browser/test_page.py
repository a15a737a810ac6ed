"""The page that looks inside, in a browser: with data of gsa inspect-text's kind, and before a server."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
import server as stub
from server import Server, look_at

pytest.importorskip("selenium")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

WORDS = ["", *[f"word{n} " for n in range(1, 60)], "line\n", "<b>bold</b> ", "end"]
COUNT = len(WORDS)
HOSTILE = "the <b>keeper</b> </script><script>document.title = 'run'</script> of the lamp <!-- walks"


def static_page(folder, looks, words=None, layers=None):
    """The page with data inside, as gsa inspect-text writes it."""
    words = WORDS if words is None else words
    data = {"model": "tiny", "text": "read.txt", "tokens": list(range(len(words))), "token_strs": words, "looks": looks}
    text = json.dumps(data).replace("<", "\\u003c")
    mark = '<script id="data" type="application/json">'
    whole = stub.page()
    assert whole.count(mark) == 1
    file = Path(folder) / "page.html"
    file.write_text(whole.replace(mark, mark + text), encoding="utf-8")
    return file.as_uri()


@pytest.fixture
def page(browser, tmp_path):
    browser.driver.get(static_page(tmp_path, [look_at(at) for at in range(COUNT - 20, COUNT)]))
    return browser


def element(browser, name):
    return browser.driver.find_element(By.ID, name)


def text(browser, name):
    return element(browser, name).text


def wait(browser, what):
    return WebDriverWait(browser.driver, 20).until(lambda _: what())


def chosen(browser):
    return browser.run("return [...document.querySelectorAll('[aria-selected=true]')].map(e => Number(e.id.slice(1)))")


def focus(browser, name):
    browser.run("document.getElementById(arguments[0]).focus()", name)


def press(browser, *keys):
    ActionChains(browser.driver).send_keys(*keys).perform()


def painted(browser, layer, begin=0.0, end=1.0):
    """Pixels of a layer's strip that are not empty, between two shares of its width."""
    return browser.run(
        """const c = document.querySelector(`#layer${arguments[0]} canvas`);
        const a = Math.floor(c.width * arguments[1]), b = Math.ceil(c.width * arguments[2]);
        const pixels = c.getContext("2d").getImageData(a, 0, b - a, c.height).data;
        let n = 0; for (let i = 3; i < pixels.length; i += 4) n += pixels[i] > 0;
        return n;""",
        layer, begin, end,
    )  # fmt: skip


def hover(browser, layer, position):
    """The mouse above the middle of a position's column."""
    lane = browser.driver.find_element(By.CSS_SELECTOR, f"#layer{layer} .lane")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", lane)
    positions = chosen(browser)[0] + 1
    offset = (position + 0.5) / positions * lane.size["width"] - lane.size["width"] / 2
    ActionChains(browser.driver).move_to_element_with_offset(lane, round(offset), 0).perform()


# ---- data inside


def test_static_page_shows_its_last_token(page):
    assert chosen(page) == [COUNT - 1]
    assert not element(page, "live").is_displayed()
    assert "tiny" in text(page, "subject") and "read.txt" in text(page, "subject")
    assert "end" in text(page, "kind")
    rows = page.driver.find_elements(By.CSS_SELECTOR, "#strip .row[id]")
    assert len(rows) == 3
    for n, row in enumerate(rows):
        cells = row.text.split("\n")
        assert cells[0] == str(n)
        assert cells[1:] == [str(n + 3), "90.0 %", "0.40", "0.60"]
    glance = text(page, "glance").split("\n")
    first = sum(1 / len(look["positions"]) for look in look_at(COUNT - 1)["layers"]) / 3
    assert glance[0] == f"{100 * first:.1f} %"
    assert "<b>bold</b>" in text(page, "tokens")  # as text


def test_clicks_and_keys_choose_tokens(page):
    element(page, f"t{COUNT - 5}").click()
    assert chosen(page) == [COUNT - 5]
    focus(page, "tokens")
    press(page, Keys.ARROW_LEFT)
    assert chosen(page) == [COUNT - 6]
    press(page, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert chosen(page) == [COUNT - 4]
    press(page, Keys.HOME)
    assert chosen(page) == [COUNT - 20]
    press(page, Keys.ARROW_LEFT)  # nothing was looked at there
    assert chosen(page) == [COUNT - 20]
    press(page, Keys.END)
    assert chosen(page) == [COUNT - 1]
    press(page, Keys.ARROW_UP)
    above = chosen(page)[0]
    assert above < COUNT - 1
    press(page, Keys.ARROW_DOWN)
    assert chosen(page)[0] > above
    element(page, "t3").click()
    assert "not looked at" in text(page, "look-error") and "--positions 3-3" in text(page, "look-error")


def test_the_strip_draws_what_was_selected(page):
    last = COUNT - 1
    for layer in range(3):
        assert painted(page, layer) > 0
        assert painted(page, layer, 0, 0.5 / COUNT) > 0  # the first token
        assert painted(page, layer, 3 / COUNT, (last // 2 - 1) / COUNT) == 0  # between it and the far one
        assert painted(page, layer, (last + 0.2) / COUNT, 1) > 0  # itself
    assert painted(page, 0, (last - 1 + 0.2) / COUNT, (last - 0.2) / COUNT) == 0
    assert painted(page, 1, (last - 1 + 0.2) / COUNT, (last - 0.2) / COUNT) > 0


def test_hover_says_the_word(page):
    far = (COUNT - 1) // 2
    hover(page, 1, far)
    said = text(page, "readout")
    assert f"Layer 1, position {far} ({COUNT - 1 - far} before the token), weight 25.0 %" in said
    assert page.driver.find_element(By.CSS_SELECTOR, "#readout mark").text.strip() == f"word{far}"
    hover(page, 2, 10)
    assert "Layer 2, position 10 " in text(page, "readout") and "not selected" in text(page, "readout")
    assert page.driver.find_element(By.CSS_SELECTOR, "#readout mark").text.strip() == "word10"


def test_keys_walk_the_strip(page):
    focus(page, "strip")
    press(page, Keys.ARROW_DOWN)
    press(page, Keys.ARROW_RIGHT)
    assert "Layer 0, position 0 " in text(page, "readout")
    press(page, Keys.ARROW_RIGHT)
    assert f"Layer 0, position {(COUNT - 1) // 2} " in text(page, "readout")
    press(page, Keys.ARROW_DOWN)
    assert f"Layer 1, position {(COUNT - 1) // 2} " in text(page, "readout")
    press(page, Keys.END)
    assert "(the token itself)" in text(page, "readout")
    press(page, Keys.HOME, "+")
    assert page.run("return range") == [0, 16]
    press(page, Keys.ARROW_RIGHT)  # leaves what is shown: the view follows
    begin, end = page.run("return range")
    assert begin <= (COUNT - 1) // 2 < end
    press(page, "0")
    assert page.run("return range") == [0, COUNT]
    press(page, Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_UP)
    assert "All layers" in text(page, "readout") and "3 of 3 layers" in text(page, "readout")


def test_enter_chooses_the_token_under_the_cursor(page):
    focus(page, "strip")
    press(page, Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ENTER)
    assert chosen(page) == [COUNT - 2]


def test_the_list_names_the_strongest(page):
    items = page.driver.find_elements(By.CSS_SELECTOR, "#list button")
    wanted = {}
    for look in look_at(COUNT - 1)["layers"]:
        for at, weight in zip(look["positions"], look["weights"], strict=True):
            wanted[at] = wanted.get(at, 0) + weight / 3
    assert len(items) == len(wanted)
    order = sorted(wanted, key=lambda at: (-round(wanted[at], 9), at))
    assert {int(item.get_attribute("aria-label").split()[1].strip(",")) for item in items[:3]} == set(order[:3])
    items[-1].click()
    assert "position" in text(page, "readout")


@pytest.mark.parametrize("dark", [False, True])
def test_themes(page, dark):
    page.look(dark=dark)
    wait(page, lambda: page.run("return matchMedia('(prefers-color-scheme: dark)').matches") == dark)
    colours = page.run(
        """const parse = (c) => c.match(/[0-9.]+/g).slice(0, 3).map(Number);
        const light = (c) => { const [r, g, b] = parse(c).map((x) => x / 255)
          .map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
          return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
        const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
          return (x + 0.05) / (y + 0.05); };
        const style = getComputedStyle(document.body);
        const card = getComputedStyle(document.querySelector("section#look")).backgroundColor;
        const of = (name) => { const e = document.createElement("i"); e.style.color = `var(--${name})`;
          document.body.append(e);
          const c = getComputedStyle(e).color; e.remove(); return c; };
        return {back: light(style.backgroundColor), text: contrast(style.color, style.backgroundColor),
          muted: contrast(of("muted"), card), bad: contrast(of("bad"), card), sink: contrast(of("sink"), card),
          far: contrast(of("far"), card), local: contrast(of("local"), card)};"""
    )
    assert (colours["back"] < 0.1) == dark
    assert colours["text"] > 7
    assert min(colours["muted"], colours["bad"]) > 4.5  # WCAG AA of text
    assert min(colours["sink"], colours["far"], colours["local"]) > 3  # and of graphics


@pytest.mark.parametrize("width", [400, 700, 1280, 1920])
def test_no_width_scrolls_sideways(page, width):
    page.look(width=width)
    wait(page, lambda: page.run("return innerWidth") == width)
    wait(page, lambda: page.run("return document.querySelector('#layer0 canvas').width <= innerWidth"))
    assert page.run("return document.documentElement.scrollWidth") <= width
    assert page.run("return document.querySelector('#layer0 .lane').clientWidth") > 0.4 * min(width, 1240) - 20
    outside = page.run(
        """return [...document.querySelectorAll('main *')].filter((e) => e.offsetParent && !e.closest('ol code')
          && e.getBoundingClientRect().right > innerWidth + 0.5).map((e) => e.outerHTML.slice(0, 90));"""
    )
    assert outside == []


def test_controls_have_names(page):
    nameless = page.run(
        """return [...document.querySelectorAll('button, input, textarea, [role=listbox], [tabindex]')].filter((e) =>
          !e.labels?.length && !e.textContent.trim() && !e.getAttribute('aria-label')).map((e) => e.id);"""
    )
    assert nameless == []


def test_a_text_of_128k_stays_quick(browser, tmp_path):
    count, layers = 131072, 24
    words = [f"w{n} " for n in range(count)]
    positions = [0, *range(40000, 40004), *range(count - 2043, count)]
    layer = {"k_t": len(positions), "positions": positions, "weights": [1 / len(positions)] * len(positions),
             "kept_mass": 0.97, "value_gate": 0.5, "output_gate": 0.5}  # fmt: skip
    look = {"position": count - 1, "sparse": True, "layers": [layer] * layers}
    browser.driver.get(static_page(tmp_path, [look], words))
    assert chosen(browser) == [count - 1]
    assert browser.run("return document.getElementsByTagName('*').length") < 3000  # whatever the length
    assert painted(browser, 23, 40000 / count - 0.002, 40004 / count + 0.002) > 0
    assert painted(browser, 23, 0.5, 0.9) == 0
    assert text(browser, "window").startswith("130,472 – 131,071 of 131,072")
    hover(browser, 5, 40001)
    assert "position 40,00" in text(browser, "readout")
    browser.run("document.getElementById('goto').value = 90000; document.getElementById('goto').onchange()")
    assert "Position 90000 was not looked at" in text(browser, "look-error")
    element(browser, "earlier").click()
    assert "129,872 – 130,471" in text(browser, "window")


def test_a_dense_look(browser, tmp_path):
    layer = {"k_t": 3, "positions": [0, 1, 2], "weights": [0.999, 0.001, 0], "kept_mass": 1,
             "value_gate": 1, "output_gate": 1}  # fmt: skip
    look = {"position": 2, "sparse": False, "layers": [layer]}
    browser.driver.get(static_page(tmp_path, [look], ["a", "b", "c"]))
    assert "dense attention" in text(browser, "kind")
    assert "100 %" in text(browser, "glance")
    assert "No far position" in text(browser, "readout")


# ---- a page of the program's


@pytest.fixture(scope="module")
def written_page(tmp_path_factory):
    """By gsa inspect-text, of a tiny model."""
    program = Path(os.environ.get("GSA_PROGRAM", stub.SOURCE.parents[2] / "build" / "release" / "bin" / "gsa"))
    assert program.is_file(), f"GSA_PROGRAM: expected the path of the program gsa, got {program}"
    folder = tmp_path_factory.mktemp("browser")
    (folder / "text.txt").write_text("the keeper of the lamp walks to the harbour\n" * 400, encoding="utf-8")
    (folder / "read.txt").write_text(HOSTILE, encoding="utf-8")

    def gsa(*arguments):
        done = subprocess.run(
            [str(program.resolve()), *arguments], cwd=folder, text=True, capture_output=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr

    gsa("tokenize", "text.txt", "--output", "data")
    options = {
        "data.train": "data", "data.length": 128, "batch.tokens": 256, "output.folder": "run", "phases.dense": 3,
        "phases.warmup": 0, "phases.sparse": 2, "model.k_base": 16, "model.k_min": 8, "model.k_max": 32,
    }  # fmt: skip
    gsa("train", *[f"--set={key}={value}" for key, value in options.items()])
    gsa("inspect-text", "run/latest", "--text", "read.txt", "--last", "16", "--output", "page.html")
    return folder / "page.html"


def test_a_written_page(browser, written_page):
    browser.driver.get(written_page.as_uri())
    assert browser.run("return document.title") == "read.txt: look inside"  # no script of the text has run
    count = len(HOSTILE.encode()) + 1
    assert chosen(browser) == [count - 1]
    assert HOSTILE[:30] in text(browser, "tokens").replace("↵", "").replace("⟨256⟩", "")
    data = browser.run("return data")
    assert len(data["looks"]) == 16
    for layer in range(len(data["looks"][0]["layers"])):
        assert painted(browser, layer) > 0
    look = data["looks"][-1]["layers"][1]
    best = max(range(len(look["positions"])), key=lambda i: look["weights"][i])
    hover(browser, 1, look["positions"][best])
    said = text(browser, "readout")
    assert f"Layer 1, position {look['positions'][best]} " in said and "weight" in said
    focus(browser, "tokens")
    press(browser, Keys.ARROW_LEFT)
    assert chosen(browser) == [count - 2]


# ---- before a server


@pytest.fixture
def server():
    with Server() as one:
        yield one
        one.shutdown()


def write(browser, name, value):
    box = element(browser, name)
    box.clear()
    box.send_keys(str(value))


def generate(browser, prompt="the keeper of", max_tokens=5, **others):
    write(browser, "prompt", prompt)
    for name, value in {"max_tokens": max_tokens, **others}.items():
        write(browser, name, value)
    element(browser, "generate").click()


def test_generates_and_looks(browser, server):
    browser.driver.get(server.address)
    wait(browser, lambda: text(browser, "subject") == "ruler-of-thumbs")
    assert not element(browser, "look").is_displayed()
    generate(browser, max_tokens=5, temperature=0.5, top_p=0.9, seed=7)
    wait(browser, lambda: element(browser, "look").is_displayed())
    assert text(browser, "output") == "the keeper of übung word1 word2 word3 word4"
    speed = text(browser, "speed")
    assert "first token after" in speed and "tokens/s" in speed and "4 + 5 tokens" in speed and "done" in speed
    path, body = next(item for item in server.requests if item[0] == "/v1/completions")
    assert body == {
        "model": "ruler-of-thumbs", "prompt": "the keeper of", "max_tokens": 5, "temperature": 0.5, "top_p": 0.9,
        "seed": 7, "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True,
    }  # fmt: skip
    # A mark, "the keeper of", and what was written: the tokens of the stream, not those of its text.
    assert chosen(browser) == [8]
    assert server.requests[-1] == ("/gsa/look", {"tokens": [0, 1, 2, 3, *range(50, 55)], "position": 8})
    assert "/tokenize" not in [path for path, _ in server.requests]
    element(browser, "t4").click()
    wait(browser, lambda: "übung" in text(browser, "kind"))
    assert server.requests[-1] == ("/gsa/look", {"tokens": [0, 1, 2, 3, 50], "position": 4})
    asked = len(server.requests)
    element(browser, "t8").click()  # known by now
    wait(browser, lambda: "word4" in text(browser, "kind"))
    assert len(server.requests) == asked


def test_more_parameters_are_sent_where_they_are_set(browser, server):
    browser.driver.get(server.address)
    browser.driver.find_element(By.CSS_SELECTOR, ".more summary").click()
    generate(browser, top_k=40, min_p=0.1, repetition_penalty=1.2, stop_at="end\\n")
    wait(browser, lambda: "done" in text(browser, "speed"))
    body = next(body for path, body in server.requests if path == "/v1/completions")
    assert (body["top_k"], body["min_p"], body["repetition_penalty"], body["stop"]) == (40, 0.1, 1.2, "end\n")
    wait(browser, lambda: element(browser, "look").is_displayed())


def test_stop_ends_the_stream(browser, server):
    server.pause = 0.05
    browser.driver.get(server.address)
    generate(browser, max_tokens=2000)
    wait(browser, lambda: "word2" in text(browser, "output"))
    element(browser, "stop").click()
    wait(browser, lambda: "stopped" in text(browser, "speed"))
    assert server.gone.wait(20)  # the server was told
    assert element(browser, "generate").is_enabled() and not element(browser, "stop").is_enabled()
    wait(browser, lambda: element(browser, "look").is_displayed())  # what was generated can be looked at
    assert text(browser, "live-error") == ""


def test_looks_at_a_prompt_alone(browser, server):
    browser.driver.get(server.address)
    write(browser, "prompt", "one two three four")
    element(browser, "inspect").click()
    wait(browser, lambda: element(browser, "look").is_displayed())
    assert chosen(browser) == [4]
    assert [path for path, _ in server.requests] == ["/tokenize", "/gsa/look"]


def test_errors_in_words(browser, server):
    browser.expected_errors = ("status of 400",)
    browser.driver.get(server.address)
    generate(browser, max_tokens=0)
    wait(browser, lambda: "expected at least 1, got 0" in text(browser, "live-error"))
    generate(browser, max_tokens=3, temperature=2)
    wait(browser, lambda: "no more room" in text(browser, "live-error"))
    assert "failed" in text(browser, "speed")
    wait(browser, lambda: element(browser, "look").is_displayed())
    element(browser, "t1").click()
    wait(browser, lambda: "expected another" in text(browser, "look-error"))
    element(browser, "t2").click()
    wait(browser, lambda: text(browser, "look-error") == "")


def test_a_key_is_asked_for_and_stays_in_memory(browser):
    browser.expected_errors = ("status of 401",)
    with Server(key="sesame") as server:
        browser.driver.get(server.address)
        generate(browser)
        wait(browser, lambda: "set the API key" in text(browser, "live-error"))
        write(browser, "key", "sesame")
        element(browser, "generate").click()
        wait(browser, lambda: "done" in text(browser, "speed"))
        wait(browser, lambda: element(browser, "look").is_displayed())
        kept = browser.run("return [document.cookie, localStorage.length, sessionStorage.length, location.href]")
        assert kept == ["", 0, 0, server.address]
        assert element(browser, "key").get_attribute("type") == "password"
        browser.driver.refresh()
        assert element(browser, "key").get_attribute("value") == ""
        server.shutdown()


def test_a_server_that_has_gone(browser):
    browser.expected_errors = ("ERR_",)
    server = Server()
    browser.driver.get(server.address)
    wait(browser, lambda: text(browser, "subject") == "ruler-of-thumbs")
    server.shutdown()
    server.server_close()
    time.sleep(0.1)
    generate(browser)
    wait(browser, lambda: "does not answer" in text(browser, "live-error"))


def test_the_live_page_fits_a_narrow_window(browser, server):
    browser.look(width=400, height=800)
    browser.driver.get(server.address)
    generate(browser)
    wait(browser, lambda: element(browser, "look").is_displayed())
    assert browser.run("return document.documentElement.scrollWidth") <= 400


# ---- before gsa serve itself


@pytest.fixture(scope="module")
def real_server(written_page):
    """The model behind written_page, on a port of its own."""
    program = os.environ.get("GSA_PROGRAM", str(stub.SOURCE.parents[2] / "build" / "release" / "bin" / "gsa"))
    command = [str(Path(program).resolve()), "serve", str(written_page.parent / "run" / "latest"), "--port", "0"]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    yield process.stdout.readline().split()[-1]
    process.terminate()
    assert process.wait(timeout=60) == 0


def test_the_real_server_writes_and_shows_where_it_looks(browser, real_server):
    browser.driver.get(real_server)
    wait(browser, lambda: text(browser, "subject") == "run")
    generate(browser, prompt="the keeper of the lamp", max_tokens=12, temperature=0)
    wait(browser, lambda: element(browser, "look").is_displayed())
    assert text(browser, "output").startswith("the keeper of the lamp")
    assert "tokens/s" in text(browser, "speed") and "done" in text(browser, "speed")
    wait(browser, lambda: painted(browser, 0) > 0)
    element(browser, "t9").click()
    wait(browser, lambda: chosen(browser) == [9])
    wait(browser, lambda: "9" in text(browser, "kind"))
    assert painted(browser, 3) > 0 and text(browser, "look-error") == ""
