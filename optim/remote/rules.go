// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"math"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/py"
)

// class is an optimizer class of PyTorch and the rule that computes the same.
type class struct {
	functional string // its class for distributed optimizers, if there is one
	// begin makes a rule and the arguments that stand for its fields; the rule is read when they have been set.
	begin func() ([]argument, func() optim.Rule)
	// read returns the arguments of a rule, if it is this class's.
	read func(optim.Rule) ([]argument, bool)
}

// argument is one of a constructor behind the parameters: a number, two numbers, or a switch of a rule. They are in the
// constructor's order.
type argument struct {
	name      string
	numbers   []*float64
	on        *bool
	otherwise []float64 // what the class has when the numbers are not given
	exact     bool      // 0 is 0; else it stands for the default where that is another number
	named     bool      // not by position
}

func number(name string, x *float64, otherwise float64) argument {
	return argument{name: name, numbers: []*float64{x}, otherwise: []float64{otherwise}}
}

func two(name string, x, y *float64, otherX, otherY float64) argument {
	return argument{name: name, numbers: []*float64{x, y}, otherwise: []float64{otherX, otherY}}
}

func betas(x, y *float64) argument { return two("betas", x, y, 0.9, 0.999) }

func flag(name string, on *bool) argument { return argument{name: name, on: on} }

// exact is a number that can be 0 and is sent in any case.
func exact(name string, x *float64, otherwise float64) argument {
	a := number(name, x, otherwise)
	a.exact = true
	return a
}

func rate(x *float64, otherwise float64) argument { return exact("lr", x, otherwise) }

func named(a argument) argument {
	a.named = true
	return a
}

func classOf[R optim.Rule](functional string, arguments func(r *R) []argument) class {
	return class{
		functional: functional,
		begin: func() ([]argument, func() optim.Rule) {
			r := new(R)
			return arguments(r), func() optim.Rule { return *r }
		},
		read: func(rule optim.Rule) ([]argument, bool) {
			r, ok := rule.(R)
			return arguments(&r), ok
		},
	}
}

var classes = map[string]class{
	"SGD": classOf("functional_sgd._FunctionalSGD", func(r *optim.SGD) []argument {
		return []argument{
			rate(&r.LR, 1e-2), number("momentum", &r.Momentum, 0), number("dampening", &r.Dampening, 0),
			number("weight_decay", &r.WeightDecay, 0),
			flag("nesterov", &r.Nesterov), named(flag("maximize", &r.Maximize)),
		}
	}),
	"Adam": classOf("functional_adam._FunctionalAdam", func(r *optim.Adam) []argument {
		return []argument{
			rate(&r.LR, 1e-3), betas(&r.Beta1, &r.Beta2), number("eps", &r.Eps, 1e-8), number("weight_decay", &r.WeightDecay, 0),
			flag("amsgrad", &r.AMSGrad), named(flag("maximize", &r.Maximize)),
		}
	}),
	"AdamW": classOf("functional_adamw._FunctionalAdamW", func(r *optim.AdamW) []argument {
		return []argument{
			rate(&r.LR, 1e-3), betas(&r.Beta1, &r.Beta2), number("eps", &r.Eps, 1e-8), exact("weight_decay", &r.WeightDecay, 1e-2),
			flag("amsgrad", &r.AMSGrad), named(flag("maximize", &r.Maximize)),
		}
	}),
	"SparseAdam": classOf("", func(r *optim.SparseAdam) []argument { // PyTorch has no functional one
		return []argument{rate(&r.LR, 1e-3), betas(&r.Beta1, &r.Beta2), number("eps", &r.Eps, 1e-8), named(flag("maximize", &r.Maximize))}
	}),
	"Adamax": classOf("functional_adamax._FunctionalAdamax", func(r *optim.Adamax) []argument {
		return []argument{
			rate(&r.LR, 2e-3), betas(&r.Beta1, &r.Beta2), number("eps", &r.Eps, 1e-8), number("weight_decay", &r.WeightDecay, 0),
			named(flag("maximize", &r.Maximize)),
		}
	}),
	"Adadelta": classOf("functional_adadelta._FunctionalAdadelta", func(r *optim.Adadelta) []argument {
		return []argument{
			rate(&r.LR, 1), number("rho", &r.Rho, 0.9), number("eps", &r.Eps, 1e-6), number("weight_decay", &r.WeightDecay, 0),
			named(flag("maximize", &r.Maximize)),
		}
	}),
	"Rprop": classOf("functional_rprop._FunctionalRprop", func(r *optim.Rprop) []argument {
		return []argument{
			rate(&r.LR, 1e-2), two("etas", &r.EtaMinus, &r.EtaPlus, 0.5, 1.2), two("step_sizes", &r.StepMin, &r.StepMax, 1e-6, 50),
			named(flag("maximize", &r.Maximize)),
		}
	}),
	"Adagrad": classOf("functional_adagrad._FunctionalAdagrad", func(r *optim.Adagrad) []argument {
		return []argument{
			rate(&r.LR, 1e-2), number("lr_decay", &r.LRDecay, 0), number("weight_decay", &r.WeightDecay, 0),
			number("initial_accumulator_value", &r.InitialAccumulator, 0), named(number("eps", &r.Eps, 1e-10)),
			named(flag("maximize", &r.Maximize)),
		}
	}),
	"RMSprop": classOf("functional_rmsprop._FunctionalRMSprop", func(r *optim.RMSprop) []argument {
		return []argument{
			rate(&r.LR, 1e-2), number("alpha", &r.Alpha, 0.99), number("eps", &r.Eps, 1e-8), number("weight_decay", &r.WeightDecay, 0),
			number("momentum", &r.Momentum, 0), flag("centered", &r.Centered), named(flag("maximize", &r.Maximize)),
		}
	}),
}

// quick are switches that choose among implementations of the same computation.
var quick = map[string]bool{
	"foreach": true, "fused": true, "capturable": true, "differentiable": true, "coalesce_grad": true,
	"_allow_empty_param_list": true,
}

func badOptimizer(format string, args ...any) error {
	return cohort.Newf("optim: remote", cohort.InvalidArgument, format, args...)
}

// parse makes the rule of a PyTorch class from the arguments of its constructor.
func parse(name py.Global, args []any, kwargs *py.Dict) (optim.Rule, error) {
	short := strings.TrimPrefix(name.Name, "_Functional")
	c, ok := classes[short]
	if !ok || !strings.HasPrefix(name.Module, "torch.") {
		return nil,
			badOptimizer(
				"a Go worker has no optimizer %s.%s: it has SGD, Adam, AdamW, SparseAdam, Adamax, Adagrad, Adadelta, RMSprop and "+
					"Rprop of torch.optim", name.Module, name.Name)
	}
	all, rule := c.begin()
	for _, a := range all {
		for i, x := range a.numbers {
			*x = a.otherwise[i]
		}
	}
	if name.Name == "_FunctionalAdamax" {
		*all[0].numbers[0] = 1e-3 // which is not that of Adamax
	}
	for i, x := range args {
		if i == len(all) || all[i].named {
			return nil, badOptimizer("%s got %d positional arguments: pass those behind %q by name", short, len(args), all[i-1].name)
		}
		if err := all[i].set(x); err != nil {
			return nil, err
		}
	}
	if kwargs == nil {
		return rule(), nil
	}
	for _, p := range kwargs.Pairs {
		key, _ := p.Key.(string)
		at := slices.IndexFunc(all, func(a argument) bool { return a.name == key })
		off := p.Value == nil || p.Value == false || p.Value == int64(0) || p.Value == 0.0
		switch {
		case at >= 0:
			if err := all[at].set(p.Value); err != nil {
				return nil, err
			}
		case !off && !quick[key]:
			return nil, badOptimizer("%s has no %s that a Go worker can do: got %v", short, key, p.Value)
		}
	}
	return rule(), nil
}

// set takes what a caller gave.
func (a argument) set(x any) error {
	values := make([]float64, 1)
	switch x := x.(type) {
	case float64:
		values[0] = x
	case int64:
		values[0] = float64(x)
	case bool:
		if x {
			values[0] = 1
		}
	case nil:
	default:
		if err := rpc.Assign(&values, x); err != nil {
			values = nil
		}
	}
	if a.on != nil && len(values) == 1 {
		*a.on = values[0] != 0
		return nil
	}
	if len(values) != len(a.numbers) || slices.ContainsFunc(values, math.IsNaN) {
		return badOptimizer("a Go worker cannot do %s=%v: want %d numbers", a.name, x, max(1, len(a.numbers)))
	}
	for i, v := range values {
		if v == 0 && a.otherwise[i] != 0 && !a.exact {
			v = optim.Zero
		}
		*a.numbers[i] = v
	}
	return nil
}

// ordinary is the module of PyTorch's optimizers that are not functional.
const ordinary = "torch.optim"

// describe names a rule as PyTorch does, with the arguments of the constructor.
func describe(r optim.Rule) (py.Global, rpc.Kw, error) {
	for short, c := range classes {
		all, ok := c.read(r)
		if !ok {
			continue
		}
		kw := rpc.Kw{}
		for _, a := range all {
			if x, given := a.value(); given {
				kw[a.name] = x
			}
		}
		if c.functional == "" {
			return py.Global{Module: ordinary, Name: short}, kw, nil
		}
		module, name, _ := strings.Cut(c.functional, ".")
		return py.Global{Module: "torch.distributed.optim." + module, Name: name}, kw, nil
	}
	return py.Global{}, nil, badOptimizer("a %T has no name that other workers know", r)
}

// value is what a caller gives for an argument, unless it is the default.
func (a argument) value() (x any, given bool) {
	if a.on != nil {
		return true, *a.on
	}
	list := make(py.Tuple, len(a.numbers))
	for i, p := range a.numbers {
		given = given || *p != 0
		switch {
		case *p == optim.Zero:
			list[i] = 0.0
		case *p == 0 && !a.exact:
			list[i] = a.otherwise[i]
		default:
			list[i] = *p
		}
	}
	if len(list) == 1 {
		return list[0], given || a.exact
	}
	return list, given
}
