// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"maps"
	"slices"
	"strings"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/python/pyconv"
	"github.com/cohort-dist/cohort/rpc/py"
)

// Kw holds the keyword arguments of a call; it is the last argument.
type Kw map[string]any

// Assign stores a received value in the variable that dst points to, converting as results and arguments are.
func Assign(dst, v any) error { return pyconv.Assign(dst, v, assignReference) }

// splitArgs separates positional and keyword arguments.
func splitArgs(args []any) ([]any, *py.Dict) {
	if len(args) == 0 {
		return nil, nil
	}
	kw, ok := args[len(args)-1].(Kw)
	if !ok {
		return args, nil
	}
	d := &py.Dict{}
	for _, name := range slices.Sorted(maps.Keys(kw)) {
		d.Pairs = append(d.Pairs, py.Pair{Key: name, Value: kw[name]})
	}
	return args[:len(args)-1], d
}

const (
	scriptPrefix = "__torch__."
	opsPrefix    = "torch.ops."
)

// target is the meaning of a function name on the wire.
type target struct {
	udf    py.Global
	schema string // of a builtin operator
	script string // of a TorchScript function or a builtin: the qualified name
}

func (t target) isScript() bool { return t.script != "" }

// check refuses calls that no worker can serve.
func (t target) check(op, fn string, kwargs *py.Dict) error {
	var e *cohort.Error
	switch {
	case t.isScript() && kwargs.Len() > 0:
		e = cohort.New(op, cohort.InvalidArgument, "TorchScript functions and operators take positional arguments only")
	case t.isScript():
		return nil
	case strings.HasPrefix(t.udf.Name, ":"):
		e = cohort.New(op, cohort.InvalidArgument,
			"an operator is called by its whole schema, such as aten::mul.Tensor(Tensor self, Tensor other) -> Tensor")
	case t.udf.Module == "" || t.udf.Name == "":
		e = cohort.New(op, cohort.InvalidArgument, "not the name of a function: want module.function")
	default:
		return nil
	}
	e.Key = fn
	return e
}

// parseTarget reads a function name; see the package documentation.
func parseTarget(fn string) target {
	switch {
	case strings.HasPrefix(fn, scriptPrefix):
		return target{script: fn}
	case strings.Contains(fn, "::") && strings.Contains(fn, "("):
		name, _, _ := strings.Cut(fn, "(")
		name, _, _ = strings.Cut(name, ".")
		return target{schema: fn, script: opsPrefix + strings.ReplaceAll(name, "::", ".")}
	}
	return target{udf: py.Func(fn)}
}
