// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"math"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/py"
)

// class is an optimizer class of PyTorch and the rule that computes the same.
type class struct {
	functional string   // its class for distributed optimizers
	params     []string // of the constructor behind the parameters, in order
	make       func(v values) optim.Rule
}

// values are the arguments of a constructor by name, as numbers; betas are two. Those that were not given are NaN.
type values map[string]float64

// or returns a value, or the default of the class.
func (v values) or(name string, otherwise float64) float64 {
	if x, ok := v[name]; ok {
		return x
	}
	return otherwise
}

// on reports whether a switch was given and set.
func (v values) on(name string) bool { return v.or(name, 0) != 0 }

var classes = map[string]class{
	"SGD": {"functional_sgd._FunctionalSGD", []string{"lr", "momentum", "dampening", "weight_decay", "nesterov"}, func(v values) optim.Rule {
		return optim.SGD{
			LR: v.or("lr", 1e-2), Momentum: v.or("momentum", 0), Dampening: v.or("dampening", 0), WeightDecay: v.or("weight_decay", 0), Nesterov: v.on("nesterov"), Maximize: v.on("maximize"),
		}
	}},
	"Adam": {"functional_adam._FunctionalAdam", []string{"lr", "betas", "eps", "weight_decay", "amsgrad"}, func(v values) optim.Rule {
		return optim.Adam{
			LR: v.or("lr", 1e-3), Beta1: v.or("beta1", 0.9), Beta2: v.or("beta2", 0.999), Eps: v.or("eps", 1e-8), WeightDecay: v.or("weight_decay", 0), AMSGrad: v.on("amsgrad"), Maximize: v.on("maximize"),
		}
	}},
	"AdamW": {"functional_adamw._FunctionalAdamW", []string{"lr", "betas", "eps", "weight_decay", "amsgrad"}, func(v values) optim.Rule {
		return optim.AdamW{
			LR: v.or("lr", 1e-3), Beta1: v.or("beta1", 0.9), Beta2: v.or("beta2", 0.999), Eps: v.or("eps", 1e-8), WeightDecay: v.or("weight_decay", 1e-2), AMSGrad: v.on("amsgrad"), Maximize: v.on("maximize"),
		}
	}},
	"SparseAdam": {"", []string{"lr", "betas", "eps"}, func(v values) optim.Rule { // PyTorch has no functional one
		return optim.SparseAdam{LR: v.or("lr", 1e-3), Beta1: v.or("beta1", 0.9), Beta2: v.or("beta2", 0.999), Eps: v.or("eps", 1e-8), Maximize: v.on("maximize")}
	}},
	"Adamax": {"functional_adamax._FunctionalAdamax", []string{"lr", "betas", "eps", "weight_decay"}, func(v values) optim.Rule {
		return optim.Adamax{LR: v.or("lr", 2e-3), Beta1: v.or("beta1", 0.9), Beta2: v.or("beta2", 0.999), Eps: v.or("eps", 1e-8), WeightDecay: v.or("weight_decay", 0), Maximize: v.on("maximize")}
	}},
	"Adadelta": {"functional_adadelta._FunctionalAdadelta", []string{"lr", "rho", "eps", "weight_decay"}, func(v values) optim.Rule {
		return optim.Adadelta{LR: v.or("lr", 1), Rho: v.or("rho", 0.9), Eps: v.or("eps", 1e-6), WeightDecay: v.or("weight_decay", 0), Maximize: v.on("maximize")}
	}},
	"Rprop": {"functional_rprop._FunctionalRprop", []string{"lr", "etas", "step_sizes"}, func(v values) optim.Rule {
		return optim.Rprop{
			LR: v.or("lr", 1e-2), EtaMinus: v.or("etaminus", 0.5), EtaPlus: v.or("etaplus", 1.2), StepMin: v.or("stepmin", 1e-6), StepMax: v.or("stepmax", 50), Maximize: v.on("maximize"),
		}
	}},
	"Adagrad": {"functional_adagrad._FunctionalAdagrad", []string{"lr", "lr_decay", "weight_decay", "initial_accumulator_value"}, func(v values) optim.Rule {
		return optim.Adagrad{
			LR: v.or("lr", 1e-2), LRDecay: v.or("lr_decay", 0), WeightDecay: v.or("weight_decay", 0), InitialAccumulator: v.or("initial_accumulator_value", 0), Eps: v.or("eps", 1e-10),
			Maximize: v.on("maximize"),
		}
	}},
	"RMSprop": {"functional_rmsprop._FunctionalRMSprop", []string{"lr", "alpha", "eps", "weight_decay", "momentum", "centered"}, func(v values) optim.Rule {
		return optim.RMSprop{
			LR: v.or("lr", 1e-2), Alpha: v.or("alpha", 0.99), Eps: v.or("eps", 1e-8), WeightDecay: v.or("weight_decay", 0), Momentum: v.or("momentum", 0), Centered: v.on("centered"),
			Maximize: v.on("maximize"),
		}
	}},
}

// pairs are arguments of two numbers, and what each of them is called here.
var pairs = map[string][2]string{"betas": {"beta1", "beta2"}, "etas": {"etaminus", "etaplus"}, "step_sizes": {"stepmin", "stepmax"}}

// known are keywords of all constructors: numbers and switches that the rules have. Others must be off.
var known = map[string]bool{
	"lr": true, "momentum": true, "dampening": true, "weight_decay": true, "nesterov": true, "eps": true, "lr_decay": true,
	"initial_accumulator_value": true, "alpha": true, "centered": true, "rho": true, "amsgrad": true, "maximize": true,
}

// byName are those that a constructor may have and takes by keyword only.
var byName = []string{"eps", "maximize"}

// zeroIsDefault are the numbers that rules take for their defaults when they are 0, which PyTorch does not.
var zeroIsDefault = []string{"beta1", "beta2", "eps", "alpha", "rho", "etaminus", "etaplus", "stepmin", "stepmax"}

// quick are switches that choose among implementations of the same computation.
var quick = map[string]bool{"foreach": true, "fused": true, "capturable": true, "differentiable": true, "coalesce_grad": true, "_allow_empty_param_list": true}

func badOptimizer(format string, args ...any) error {
	return dist.Newf("optim: remote", dist.InvalidArgument, format, args...)
}

// parse makes the rule of a PyTorch class from the arguments of its constructor.
func parse(name py.Global, args []any, kwargs *py.Dict) (optim.Rule, error) {
	short := strings.TrimPrefix(name.Name, "_Functional")
	c, ok := classes[short]
	if !ok || !strings.HasPrefix(name.Module, "torch.") {
		return nil, badOptimizer("a Go worker has no optimizer %s.%s: it has SGD, Adam, AdamW, SparseAdam, Adamax, Adagrad, Adadelta, RMSprop and Rprop of torch.optim", name.Module, name.Name)
	}
	v := values{}
	if len(args) > len(c.params) {
		return nil, badOptimizer("%s got %d positional arguments: pass those behind %q by name", short, len(args), c.params[len(c.params)-1])
	}
	for i, x := range args {
		if err := v.set(c.params[i], x); err != nil {
			return nil, err
		}
	}
	if kwargs != nil {
		for _, p := range kwargs.Pairs {
			key, _ := p.Key.(string)
			if off := p.Value == nil || p.Value == false; known[key] && !off && !slices.Contains(byName, key) && !slices.Contains(c.params, key) {
				return nil, badOptimizer("%s has no %s", short, key)
			}
			if err := v.set(key, p.Value); err != nil {
				return nil, err
			}
		}
	}
	if _, given := v["lr"]; !given && name.Name == "_FunctionalAdamax" {
		v["lr"] = 1e-3 // which is not that of Adamax
	}
	for _, key := range zeroIsDefault {
		if x, given := v[key]; given && x == 0 {
			return nil, badOptimizer("a Go worker cannot do %s with %s=0: 0 stands for the default there", short, key)
		}
	}
	return c.make(v), nil
}

func (v values) set(name string, x any) error {
	if parts, ok := pairs[name]; ok {
		var two []float64
		if err := rpc.Assign(&two, x); err != nil || len(two) != 2 {
			return badOptimizer("%s are two numbers, not %v", name, x)
		}
		v[parts[0]], v[parts[1]] = two[0], two[1]
		return nil
	}
	number := math.NaN()
	switch x := x.(type) {
	case float64:
		number = x
	case int64:
		number = float64(x)
	case bool:
		number = 0
		if x {
			number = 1
		}
	case nil:
		number = 0
	}
	switch {
	case quick[name]:
	case known[name] && !math.IsNaN(number):
		v[name] = number
	case known[name] || number != 0:
		return badOptimizer("a Go worker cannot do %s=%v", name, x)
	}
	return nil
}

// ordinary is the module of PyTorch's optimizers that are not functional.
const ordinary = "torch.optim"

// describe names a rule as PyTorch does, with the arguments of the constructor.
func describe(r optim.Rule) (py.Global, rpc.Kw, error) {
	kw := rpc.Kw{"lr": r.Rate()}
	set := func(name string, x float64) {
		if x != 0 {
			kw[name] = x
		}
	}
	two := func(name string, x, y, otherX, otherY float64) {
		if x != 0 || y != 0 {
			kw[name] = py.Tuple{or(x, otherX), or(y, otherY)}
		}
	}
	betas := func(b1, b2 float64) { two("betas", b1, b2, 0.9, 0.999) }
	flag := func(name string, on bool) {
		if on {
			kw[name] = true
		}
	}
	var short string
	switch r := r.(type) {
	case optim.SGD:
		short = "SGD"
		set("momentum", r.Momentum)
		set("dampening", r.Dampening)
		set("weight_decay", r.WeightDecay)
		flag("nesterov", r.Nesterov)
		flag("maximize", r.Maximize)
	case optim.Adam:
		short = "Adam"
		betas(r.Beta1, r.Beta2)
		set("eps", r.Eps)
		set("weight_decay", r.WeightDecay)
		flag("amsgrad", r.AMSGrad)
		flag("maximize", r.Maximize)
	case optim.Adamax:
		short = "Adamax"
		betas(r.Beta1, r.Beta2)
		set("eps", r.Eps)
		set("weight_decay", r.WeightDecay)
		flag("maximize", r.Maximize)
	case optim.Adadelta:
		short = "Adadelta"
		set("rho", r.Rho)
		set("eps", r.Eps)
		set("weight_decay", r.WeightDecay)
		flag("maximize", r.Maximize)
	case optim.Rprop:
		short = "Rprop"
		two("etas", r.EtaMinus, r.EtaPlus, 0.5, 1.2)
		two("step_sizes", r.StepMin, r.StepMax, 1e-6, 50)
		flag("maximize", r.Maximize)
	case optim.AdamW:
		short = "AdamW"
		betas(r.Beta1, r.Beta2)
		set("eps", r.Eps)
		kw["weight_decay"] = r.WeightDecay
		flag("amsgrad", r.AMSGrad)
		flag("maximize", r.Maximize)
	case optim.SparseAdam:
		betas(r.Beta1, r.Beta2)
		set("eps", r.Eps)
		flag("maximize", r.Maximize)
		return py.Global{Module: ordinary, Name: "SparseAdam"}, kw, nil
	case optim.Adagrad:
		short = "Adagrad"
		set("lr_decay", r.LRDecay)
		set("weight_decay", r.WeightDecay)
		set("initial_accumulator_value", r.InitialAccumulator)
		set("eps", r.Eps)
		flag("maximize", r.Maximize)
	case optim.RMSprop:
		short = "RMSprop"
		set("alpha", r.Alpha)
		set("eps", r.Eps)
		set("weight_decay", r.WeightDecay)
		set("momentum", r.Momentum)
		flag("centered", r.Centered)
		flag("maximize", r.Maximize)
	default:
		return py.Global{}, nil, badOptimizer("a %T has no name that other workers know", r)
	}
	module, name, _ := strings.Cut(classes[short].functional, ".")
	return py.Global{Module: "torch.distributed.optim." + module, Name: name}, kw, nil
}

func or(x, otherwise float64) float64 {
	if x == 0 {
		return otherwise
	}
	return x
}
