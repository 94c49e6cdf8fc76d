// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"github.com/cohort-dist/cohort"
)

// batch is how many items CPython puts between two marks.
const batch = 1000

func (w *writer) container(v any, depth int) error {
	switch v := v.(type) {
	case *Tuple:
		return w.tuple(v, depth)
	case *List:
		w.out = append(w.out, opEmptyList)
		w.remember(v)
		return w.appends(v.Items, depth)
	case *Dict:
		w.out = append(w.out, opEmptyDict)
		w.remember(v)
		return w.setItems(v.Pairs, depth)
	case *Set:
		if w.protocol < 4 {
			return w.reduceOnce(v, Call(Global{Module: "__builtin__", Name: "set"}, NewList(v.Items...)), depth)
		}
		w.out = append(w.out, opEmptySet)
		w.remember(v)
		return w.batches(v.Items, depth, opAddItems)
	case *FrozenSet:
		if w.protocol < 4 {
			return w.reduceOnce(v, Call(Global{Module: "__builtin__", Name: "frozenset"}, NewList(v.Items...)), depth)
		}
		w.out = append(w.out, opMark)
		for _, item := range v.Items {
			if err := w.value(item, depth); err != nil {
				return err
			}
		}
		w.out = append(w.out, opFrozenSet)
		w.remember(v)
		return nil
	case *ByteArray:
		// BYTEARRAY8 came with protocol 5
		return w.reduceOnce(v, Call(Global{Module: w.builtins(), Name: "bytearray"}, Bytes(v.Data)), depth)
	case *Object:
		return w.object(v, depth)
	case *PersID:
		if err := w.value(v.ID, depth); err != nil {
			return err
		}
		w.out = append(w.out, opBinPersID)
		w.remember(v)
		return nil
	}
	return nil
}

// reduceOnce writes a call that stands for v, so that v is shared and not the call.
func (w *writer) reduceOnce(v any, call *Object, depth int) error {
	if err := w.callOf(call, depth); err != nil {
		return err
	}
	w.remember(v)
	return nil
}

func (w *writer) tuple(v *Tuple, depth int) error {
	n := len(v.Items)
	if n == 0 {
		w.out = append(w.out, opEmptyTuple)
		return nil
	}
	if n > 3 {
		w.out = append(w.out, opMark)
	}
	for _, item := range v.Items {
		if err := w.value(item, depth); err != nil {
			return err
		}
	}
	if i, ok := w.lookup(v); ok { // an item contained this tuple and wrote it: drop the items and refer to that one
		if n > 3 {
			w.out = append(w.out, opPopMark)
		} else {
			for range n {
				w.out = append(w.out, opPop)
			}
		}
		w.recall(i)
		return nil
	}
	if n > 3 {
		w.out = append(w.out, opTuple)
	} else {
		w.out = append(w.out, opTuple1+byte(n)-1)
	}
	w.remember(v)
	return nil
}

func (w *writer) batches(items []any, depth int, op byte) error {
	for len(items) > 0 {
		n := min(len(items), batch)
		w.out = append(w.out, opMark)
		for _, item := range items[:n] {
			if err := w.value(item, depth); err != nil {
				return err
			}
		}
		w.out = append(w.out, op)
		items = items[n:]
	}
	return nil
}

func (w *writer) appends(items []any, depth int) error {
	if len(items) == 1 {
		if err := w.value(items[0], depth); err != nil {
			return err
		}
		w.out = append(w.out, opAppend)
		return nil
	}
	return w.batches(items, depth, opAppends)
}

func (w *writer) setItems(pairs []Pair, depth int) error {
	if len(pairs) == 1 {
		if err := w.value(pairs[0].Key, depth); err != nil {
			return err
		}
		if err := w.value(pairs[0].Value, depth); err != nil {
			return err
		}
		w.out = append(w.out, opSetItem)
		return nil
	}
	for len(pairs) > 0 {
		n := min(len(pairs), batch)
		w.out = append(w.out, opMark)
		for _, p := range pairs[:n] {
			if err := w.value(p.Key, depth); err != nil {
				return err
			}
			if err := w.value(p.Value, depth); err != nil {
				return err
			}
		}
		w.out = append(w.out, opSetItems)
		pairs = pairs[n:]
	}
	return nil
}

func (w *writer) callOf(o *Object, depth int) error {
	if err := w.value(o.Class, depth); err != nil {
		return err
	}
	args := o.Args
	if args == nil {
		args = &Tuple{}
	}
	if err := w.value(args, depth); err != nil {
		return err
	}
	switch o.How {
	case Reduce:
		w.out = append(w.out, opReduce)
	case NewObj:
		w.out = append(w.out, opNewObj)
	case NewObjEx:
		if w.protocol < 4 {
			return cohort.New("pickle: encode", cohort.InvalidArgument, "an object with keyword arguments needs protocol 4")
		}
		kwargs := o.KwArgs
		if kwargs == nil {
			kwargs = &Dict{}
		}
		if err := w.value(kwargs, depth); err != nil {
			return err
		}
		w.out = append(w.out, opNewObjEx)
	}
	return nil
}

func (w *writer) object(o *Object, depth int) error {
	if err := w.callOf(o, depth); err != nil {
		return err
	}
	w.remember(o)
	if err := w.appends(o.Items, depth); err != nil {
		return err
	}
	if err := w.setItems(o.Pairs, depth); err != nil {
		return err
	}
	for _, state := range o.States {
		if err := w.value(state, depth); err != nil {
			return err
		}
		w.out = append(w.out, opBuild)
	}
	return nil
}
