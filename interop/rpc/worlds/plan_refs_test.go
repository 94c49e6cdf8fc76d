// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worlds_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// create makes an object by a call that leaves its result there.
func (g *generator) create(from, to *worker) {
	c := command{Op: "create", To: to.name, Confirm: g.IntN(2) == 0 && !g.faulty, Wrap: g.wrap(from)}
	if c.Wrap == "profile" {
		c.Wrap = ""
	}
	o := &object{owner: to, kind: "value"}
	switch g.IntN(5) {
	case 0:
		o.kind, o.n = "box", g.IntN(100)
		c.Fn, c.Args = "world.box", []value{intValue(o.n)}
	case 1:
		o.kind, o.fault = "failed", g.fault(to)
		c.Fn, c.Args, c.Confirm = "world.fail", faultArgs(o.fault), false
	default:
		o.val = g.value(2, g.refs(from, 2, func(x *object) bool { return x.kind != "box" }))
		c.Fn, c.Args = "world.make", []value{o.val}
	}
	c.Slot = g.newSlot(from, o)
	g.add(from, c, learn(o))
}

// local is a value that a worker can make an object of. PyTorch looks for the TorchScript type of such values: an int
// of more than 64 bits or half a surrogate pair is an error then, bytes may become a str, and a worker of version 2.6
// dies when it passes on a reference to a tuple.
func (g *generator) local(at *worker) value {
	var fits func(v value) bool
	fits = func(v value) bool {
		half := v.K == "str" && (strings.Contains(v.S, "eda080") || strings.Contains(v.S, "edbfbf"))
		return v.K != "tuple" && v.K != "bytes" && !half && (v.K != "int" || len(v.S) < 18) &&
			!slices.ContainsFunc(v.L, func(x value) bool { return !fits(x) })
	}
	for {
		if v := g.value(2, nil); at.isGo() || fits(v) {
			return v
		}
	}
}

// own makes an object of a value of the worker itself.
func (g *generator) own(from, to *worker) {
	o := &object{owner: from, kind: "value"}
	switch g.IntN(4) {
	case 0:
		o.kind, o.n = "box", g.IntN(100)
		g.add(from, command{Op: "ownbox", Args: []value{intValue(o.n)}, Slot: g.newSlot(from, o)}, learn(o))
	case 1: // made by a function there, which returns the reference
		o.owner, o.val = to, g.local(to)
		c := command{
			Op: "call", To: to.name, Fn: "world.own", Mode: pick(g, "sync", "async"), Args: []value{o.val},
			Slot: g.newSlot(from, o),
		}
		g.add(from, c, learn(o))
	default:
		o.val = g.local(from)
		g.add(from, command{Op: "own", Args: []value{o.val}, Slot: g.newSlot(from, o)}, learn(o))
	}
}

// fetch copies a value to here, itself or through a third worker.
func (g *generator) fetch(from, to *worker) {
	o, at := g.handle(from, func(o *object) bool { return o.kind != "box" })
	if o == nil {
		return
	}
	c := command{Op: "fetch", Ref: at, Wrap: g.wrap(from)}
	if g.IntN(2) == 0 {
		c = command{
			Op: "call", To: to.name, Fn: "world.fetch", Mode: pick(g, "sync", "async"),
			Args: []value{{K: "ref", Slot: at.Slot, Index: at.Index}}, Wrap: c.Wrap,
		}
	}
	if o.kind == "failed" {
		r := o.fault
		c.Raises = &r
		if c.Op == "call" { // the exception of an exception: its class stays, its text is about both
			g.add(from, c, failed)
			return
		}
		g.add(from, c, wantFault(from, o.owner, r))
		return
	}
	if refs := refsIn(o.val); len(refs) > 0 && g.IntN(2) == 0 {
		c.Slot = g.newSlot(from, refs...)
	}
	g.add(from, c, wantValue(o.val))
}

// about asks for the owner, and for the value where it lives.
func (g *generator) about(from, _ *worker) {
	o, at := g.handle(from, nil)
	if o == nil {
		return
	}
	if g.IntN(2) == 0 {
		yes := "F"
		if o.owner == from {
			yes = "T"
		}
		g.add(from, command{Op: "about", Ref: at},
			want(fmt.Sprintf("(%s s%s i%d)", yes, hex.EncodeToString([]byte(o.owner.name)), o.owner.rank)))
		return
	}
	c := command{Op: "local", Ref: at}
	switch {
	case o.owner != from:
		g.add(from, c, failed)
	case o.kind == "failed":
		r := o.fault
		c.Raises = &r
		g.add(from, c, failed)
	case o.kind == "box":
		if g.touched[o] {
			return
		}
		g.touched[o] = true
		g.add(from, c, want(fmt.Sprintf("box%d", o.n)))
	default:
		g.add(from, c, wantValue(o.val))
	}
}

// method calls a method of a box through a reference.
func (g *generator) method(from, to *worker) {
	o, at := g.handle(from, func(o *object) bool { return o.kind == "box" && !g.touched[o] })
	if o == nil {
		return
	}
	g.touched[o] = true
	c := command{Op: "method", Ref: at, Mode: g.mode(), Wrap: g.wrap(from)}
	switch g.IntN(7) {
	case 0:
		c.Fn = "get"
		g.add(from, c, want(fmt.Sprintf("i%d", o.n)))
	case 1:
		r := g.fault(o.owner)
		c.Fn, c.Args, c.Raises = "fail", faultArgs(r), &r
		if c.Mode == "async" && !from.isGo() {
			c.Mode = "sync" // PyTorch itself never releases a reference whose rpc_async().method() raised
		}
		g.add(from, c, wantFault(from, o.owner, r))
	case 2:
		v := g.value(2, g.refs(from, 2, (*object).plain))
		c.Fn, c.Args = "hold", []value{v}
		o.held = refsIn(v)
		g.add(from, c, wantText(v))
	case 3:
		held := slices.Clone(o.held)
		c.Fn, c.Slot = "held", g.newSlot(from, held...)
		g.add(from, c, func(got string) error {
			var texts []string
			for _, h := range held {
				texts = append(texts, h.text())
			}
			return want("[" + strings.Join(texts, " ") + "]")(got)
		})
	case 4:
		v := g.value(2, g.refs(from, 2, nil))
		c.Fn, c.Args = "echo", []value{v}
		g.add(from, c, wantValue(v))
	case 5: // by a third worker
		k := g.IntN(50)
		o.n += k
		c = command{
			Op: "call", To: to.name, Fn: "world.through", Mode: pick(g, "sync", "async"),
			Args: []value{{K: "ref", Slot: at.Slot, Index: at.Index}, strValue("add"), intValue(k)},
		}
		g.add(from, c, want(fmt.Sprintf("i%d", o.n)))
	default:
		k := g.IntN(50)
		o.n += k
		c.Fn, c.Args = "add", []value{intValue(k)}
		g.add(from, c, want(fmt.Sprintf("i%d", o.n)))
	}
}

// pass gives references to another worker, which keeps them.
func (g *generator) pass(from, to *worker) {
	refs := g.refs(from, 4, nil)
	if len(refs) == 0 {
		return
	}
	v := g.value(2, refs)
	name := g.newSlot(to, refsIn(v)...)
	c := command{
		Op: "call", To: to.name, Fn: "world.keep", Mode: pick(g, "sync", "async", "async"),
		Args: []value{strValue(name), v}, Wrap: g.wrap(from),
	}
	g.add(from, c, wantText(v))
}

// take asks another worker for what it keeps.
func (g *generator) take(from, to *worker) {
	list := g.slotsOf(to)
	if len(list) == 0 {
		return
	}
	s := pick(g, list...)
	s.shared = true
	objs := slices.Clone(s.objs)
	c := command{Op: "call", To: to.name, Fn: "world.give", Mode: g.mode(), Args: []value{strValue(s.name)}, Wrap: g.wrap(from)}
	if g.IntN(3) > 0 {
		c.Slot = g.newSlot(from, objs...)
	}
	g.add(from, c, func(got string) error {
		var texts []string
		for _, o := range objs {
			texts = append(texts, o.text())
		}
		return want("[" + strings.Join(texts, " ") + "]")(got)
	})
}

// spread lets another worker make many references at a third, and return them.
func (g *generator) spread(from, to *worker) {
	owner, n := pick(g, g.present...), 1+g.IntN(10)
	var objs []*object
	for i := range n {
		objs = append(objs, &object{owner: owner, kind: "value", val: intValue(i)})
	}
	c := command{
		Op: "call", To: to.name, Fn: "world.spread", Mode: g.mode(), Args: []value{strValue(owner.name), intValue(n)},
		Slot: g.newSlot(from, objs...),
	}
	g.add(from, c, func(got string) error {
		texts := strings.Fields(strings.Trim(got, "[]"))
		if len(texts) != n {
			return fmt.Errorf("got %s, want %d references", got, n)
		}
		var errs []error
		for i, o := range objs {
			errs = append(errs, learn(o)(texts[i]))
		}
		return errors.Join(errs...)
	})
}

// drop ends the references of a slot.
func (g *generator) drop(from, _ *worker) {
	var list []*slot
	for _, s := range g.slots {
		if !s.locked && !s.shared && s.at == from {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return
	}
	s := pick(g, list...)
	g.forget(s)
	g.add(from, command{Op: "drop", Slot: s.name}, want("dropped"))
}

func (g *generator) forget(s *slot) {
	s.locked = true
	g.slots = slices.DeleteFunc(g.slots, func(x *slot) bool { return x == s })
}
