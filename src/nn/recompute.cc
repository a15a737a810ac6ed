#include "nn/recompute.h"

#include <ATen/autocast_mode.h>

#include <utility>

namespace gsa::nn {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The settings of autocast on one device.
struct Autocast {
  explicit Autocast(at::DeviceType type)
      : device(type),
        enabled(at::autocast::is_autocast_enabled(type)),
        dtype(at::autocast::get_autocast_dtype(type)),
        cache(at::autocast::is_autocast_cache_enabled()) {}

  void set() const {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
    at::autocast::set_autocast_cache_enabled(cache);
  }

  at::DeviceType device;
  bool enabled;
  at::ScalarType dtype;
  bool cache;
};

// Settings for a scope. The cache of casts stays off inside: a cast of a weight that was made without a graph
// must not be found by a pass that needs one.
class AutocastScope {
 public:
  explicit AutocastScope(Autocast wanted) : before_(wanted.device) {
    wanted.cache = false;
    wanted.set();
  }
  ~AutocastScope() { before_.set(); }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  Autocast before_;
};

// What the backward pass needs besides tensors; travels through the context as an opaque object.
struct Recomputation : torch::CustomClassHolder {
  Recomputation(Recomputable f, Autocast a) : function(std::move(f)), autocast(a) {}
  Recomputable function;
  Autocast autocast;
};

class Recompute : public torch::autograd::Function<Recompute> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList inputs, at::TensorList parameters,
                               const Recomputable& first, const Recomputable& again) {
    const Autocast autocast(inputs[0].device().type());
    context->set_materialize_grads(false);  // an output that nobody used has no gradient, rather than zeros
    variable_list saved = inputs.vec();
    saved.insert(saved.end(), parameters.begin(), parameters.end());
    context->save_for_backward(std::move(saved));
    c10::List<bool> differentiable;
    for (const Tensor& input : inputs) differentiable.push_back(input.requires_grad());
    context->saved_data["differentiable"] = differentiable;
    context->saved_data["recomputation"] =
        c10::IValue::make_capsule(c10::make_intrusive<Recomputation>(again, autocast));
    const AutocastScope scope(autocast);
    return first(inputs.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto capsule = context->saved_data["recomputation"].toCapsule();
    const Recomputation& recomputation = static_cast<const Recomputation&>(*capsule);

    const c10::List<bool> differentiable = context->saved_data["differentiable"].toBoolList();
    variable_list sources = saved;  // of gradients: the inputs apart from what made them, and the parameters
    for (std::size_t i = 0; i < differentiable.size(); ++i) {
      sources[i] = saved[i].detach();
      sources[i].requires_grad_(differentiable.get(i));
    }
    variable_list outputs, output_gradients, inputs;
    {
      const torch::AutoGradMode with_graph(true);
      const AutocastScope scope(recomputation.autocast);
      const auto end = sources.begin() + static_cast<std::ptrdiff_t>(differentiable.size());
      const variable_list results = recomputation.function({sources.begin(), end});
      for (std::size_t i = 0; i < results.size(); ++i) {
        if (!gradients[i].defined() || !results[i].requires_grad()) continue;
        outputs.push_back(results[i]);
        output_gradients.push_back(gradients[i]);
      }
    }
    // Slots in the list that goes back: the inputs, the parameters, and the two functions (never defined).
    variable_list back(saved.size() + 2);
    std::vector<std::size_t> slots;
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (!sources[i].requires_grad()) continue;
      inputs.push_back(sources[i]);
      slots.push_back(i);
    }
    if (outputs.empty() || inputs.empty()) return back;
    const variable_list input_gradients =
        torch::autograd::grad(outputs, inputs, output_gradients, /*retain_graph=*/false,
                              /*create_graph=*/false, /*allow_unused=*/true);
    for (std::size_t i = 0; i < slots.size(); ++i) back[slots[i]] = input_gradients[i];
    return back;
  }
};

}  // namespace

std::vector<Tensor> recompute(const std::vector<Tensor>& inputs, const std::vector<Tensor>& parameters,
                              const Recomputable& first, const Recomputable& again) {
  return Recompute::apply(at::TensorList(inputs), at::TensorList(parameters), first, again);
}

}  // namespace gsa::nn
