// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pickle

import "unicode/utf8"

// object executes the opcodes that would import or call something. Here they only make a description.
func (r *reader) object(op byte) error {
	switch op {
	case opGlobal, opStackGlobal, opInst:
		return r.global(op)
	case opPersID:
		line, err := r.line()
		if err != nil {
			return err
		}
		return r.push(&PersID{ID: line})
	case opBinPersID:
		v, err := r.pop()
		if err != nil {
			return err
		}
		return r.push(&PersID{ID: v})
	case opObj:
		items, err := r.popMark()
		if err != nil {
			return err
		}
		if len(items) == 0 {
			return r.bad("OBJ without a class")
		}
		return r.call(Reduce, items[0], &Tuple{Items: items[1:]}, nil)
	case opBuild:
		return r.build()
	}
	// REDUCE, NEWOBJ and NEWOBJ_EX: class, arguments and perhaps keyword arguments.
	var kwargs *Dict
	if op == opNewObjEx {
		v, err := r.pop()
		if err != nil {
			return err
		}
		d, ok := v.(*Dict)
		if !ok {
			return r.bad("NEWOBJ_EX with %s as keyword arguments", TypeName(v))
		}
		kwargs = d
	}
	v, err := r.pop()
	if err != nil {
		return err
	}
	args, ok := v.(*Tuple)
	if !ok {
		return r.bad("a call with %s as arguments", TypeName(v))
	}
	class, err := r.pop()
	if err != nil {
		return err
	}
	how := Reduce
	switch op {
	case opNewObj:
		how = NewObj
	case opNewObjEx:
		how = NewObjEx
	}
	return r.call(how, class, args, kwargs)
}

func (r *reader) call(how How, class any, args *Tuple, kwargs *Dict) error {
	switch class.(type) {
	case Global, *Object, *PersID:
	default:
		return r.bad("a call of a %s", TypeName(class))
	}
	return r.push(&Object{How: how, Class: class, Args: args, KwArgs: kwargs})
}

func (r *reader) global(op byte) error {
	var g Global
	if op == opStackGlobal {
		name, err := r.pop()
		if err != nil {
			return err
		}
		module, err := r.pop()
		if err != nil {
			return err
		}
		var ok1, ok2 bool
		g.Name, ok1 = name.(string)
		g.Module, ok2 = module.(string)
		if !ok1 || !ok2 {
			return r.bad("STACK_GLOBAL with %s and %s", TypeName(module), TypeName(name))
		}
		return r.push(boxed(r.renamed(g)))
	}
	var err error
	if g.Module, err = r.line(); err != nil {
		return err
	}
	if g.Name, err = r.line(); err != nil {
		return err
	}
	if !utf8.ValidString(g.Module) || !utf8.ValidString(g.Name) {
		return r.bad("the name of a class or function is not UTF-8")
	}
	g = r.renamed(g)
	if op == opGlobal {
		return r.push(boxed(g))
	}
	items, err := r.popMark()
	if err != nil {
		return err
	}
	return r.call(Reduce, g, &Tuple{Items: items}, nil)
}

func (r *reader) build() error {
	state, err := r.pop()
	if err != nil {
		return err
	}
	v, err := r.top()
	if err != nil {
		return err
	}
	o, ok := v.(*Object)
	if !ok {
		return r.bad("BUILD of a %s", TypeName(v))
	}
	o.States = append(o.States, state)
	return nil
}

// Pickles below protocol 3 use the names of Python 2, and CPython translates them. These are the ones that it still
// writes for values of today.
var (
	python2Modules = map[string]string{
		"__builtin__": "builtins", "copy_reg": "copyreg", "Queue": "queue", "SocketServer": "socketserver",
		"ConfigParser": "configparser", "repr": "reprlib", "cPickle": "pickle", "_abcoll": "collections.abc",
		"exceptions": "builtins", "UserDict": "collections", "UserList": "collections", "UserString": "collections",
	}
	python2Names = map[Global]Global{
		{Module: "__builtin__", Name: "xrange"}:       {Module: "builtins", Name: "range"},
		{Module: "__builtin__", Name: "unicode"}:      {Module: "builtins", Name: "str"},
		{Module: "__builtin__", Name: "long"}:         {Module: "builtins", Name: "int"},
		{Module: "__builtin__", Name: "unichr"}:       {Module: "builtins", Name: "chr"},
		{Module: "__builtin__", Name: "raw_input"}:    {Module: "builtins", Name: "input"},
		{Module: "__builtin__", Name: "basestring"}:   {Module: "builtins", Name: "str"},
		{Module: "__builtin__", Name: "intern"}:       {Module: "sys", Name: "intern"},
		{Module: "__builtin__", Name: "reduce"}:       {Module: "functools", Name: "reduce"},
		{Module: "itertools", Name: "izip"}:           {Module: "builtins", Name: "zip"},
		{Module: "itertools", Name: "imap"}:           {Module: "builtins", Name: "map"},
		{Module: "itertools", Name: "ifilter"}:        {Module: "builtins", Name: "filter"},
		{Module: "exceptions", Name: "StandardError"}: {Module: "builtins", Name: "Exception"},
	}
)

func (r *reader) renamed(g Global) Global {
	if r.protocol >= 3 || r.limits.JIT {
		return g
	}
	if to, ok := python2Names[g]; ok {
		return to
	}
	if module, ok := python2Modules[g.Module]; ok {
		g.Module = module
	}
	return g
}
