// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worlds_test

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

// ---- what the model knows

func want(text string) func(string) error {
	return func(got string) error {
		if got != text {
			at := 0
			for at < min(len(got), len(text)) && got[at] == text[at] {
				at++
			}
			at = max(0, at-40)
			return fmt.Errorf("from %d on:\ngot  %.300s\nwant %.300s", at, got[min(at, len(got)):], text[min(at, len(text)):])
		}
		return nil
	}
}

func wantValue(v value) func(string) error {
	return func(got string) error {
		e := &expected{}
		return want(e.text(v))(got)
	}
}

// wantText is for functions that answer what they saw, as text.
func wantText(v value) func(string) error {
	return func(got string) error {
		e := &expected{}
		return want("s" + hex.EncodeToString([]byte(e.text(v))))(got)
	}
}

func failed(got string) error {
	if !strings.HasPrefix(got, "!") || strings.HasPrefix(got, "!driver") {
		return fmt.Errorf("got %s, want an error", got)
	}
	return nil
}

// learn takes the id of a new object from the text of its reference.
func learn(o *object) func(string) error {
	return func(got string) error {
		id, ok := strings.CutPrefix(got, "R"+o.owner.name+"/")
		if !ok {
			return fmt.Errorf("got %s, want a reference to %s", got, o.owner.name)
		}
		o.id = id
		return nil
	}
}

// slotsOf returns the slots of a worker that a command may use.
func (g *generator) slotsOf(w *worker) []*slot {
	var list []*slot
	for _, s := range g.slots {
		if s.at == w && !s.locked && len(s.objs) > 0 {
			list = append(list, s)
		}
	}
	return list
}

// handle picks a reference that a worker has.
func (g *generator) handle(w *worker, fits func(*object) bool) (*object, *place) {
	type found struct {
		s *slot
		i int
	}
	var all []found
	for _, s := range g.slotsOf(w) {
		for i, o := range s.objs {
			if fits == nil || fits(o) {
				all = append(all, found{s, i})
			}
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	f := pick(g, all...)
	f.s.shared = true
	return f.s.objs[f.i], &place{Slot: f.s.name, Index: f.i}
}

// refs picks references of a worker for a value.
func (g *generator) refs(w *worker, most int, fits func(*object) bool) []value {
	var list []value
	for range g.IntN(most + 1) {
		if o, at := g.handle(w, fits); o != nil {
			list = append(list, value{K: "ref", Slot: at.Slot, Index: at.Index, object: o})
		}
	}
	return list
}

// newSlot makes a slot that holds the objects once the batch is over.
func (g *generator) newSlot(w *worker, objs ...*object) string {
	s := &slot{name: g.name("s"), at: w, objs: objs, locked: true}
	g.after = append(g.after, func() { s.locked = false; g.slots = append(g.slots, s) })
	return s.name
}

func (g *generator) add(w *worker, c command, check func(string) error) {
	g.batch = append(g.batch, task{w, c, check})
}

func (g *generator) mode() string {
	if g.later {
		return pick(g, "sync", "async")
	}
	return pick(g, "sync", "async", "remote")
}

func (g *generator) wrap(w *worker) string {
	switch {
	case w.isGo():
		return ""
	case g.IntN(5) == 0:
		return "autograd"
	case g.serial && g.IntN(4) == 0:
		return "profile"
	}
	return ""
}

var kinds = []string{
	"ValueError", "TypeError", "KeyError", "RuntimeError", "IndexError", "ZeroDivisionError",
	"NotImplementedError", "AssertionError", "world.Custom", "OSError", "UnicodeError",
}

func (g *generator) fault(at *worker) raises {
	r := raises{Kind: pick(g, kinds...), Text: pick(g, "it's wrong", "plain", `say "no"`, "", "two: parts", "a (b) [c] {d} %s %d",
		`it's "both"`), Worker: at.name, ID: at.rank}
	if r.Kind == "KeyError" {
		r.Text = "missing"
	}
	if at.isGo() && g.IntN(3) == 0 && r.Kind != "KeyError" {
		r.Text, r.Mangled = pick(g, "ä € 😀", "line one\nline two", `back\slash\n`, "tab\tend"), true
	}
	return r
}

// wantFault is how a caller sees an exception.
func wantFault(caller, at *worker, r raises) func(string) error {
	text := r.Text
	if caller.isGo() && !at.isGo() && r.Kind == "KeyError" {
		text = "'" + text + "'" // the text of a KeyError is the key as Python writes it
	}
	return want(fmt.Sprintf("!%s|%s|%s", r.Kind, text, r.Worker))
}

func faultArgs(r raises) []value { return []value{strValue(r.Kind), strValue(r.Text)} }

// ---- steps. Each adds commands to the batch, or none where the world is not ready for it.

// call calls an ordinary function with a random value.
func (g *generator) call(from, to *worker) {
	v := g.value(3, g.refs(from, 3, nil))
	c := command{Op: "call", To: to.name, Mode: g.mode(), Wrap: g.wrap(from)}
	switch g.IntN(4) {
	case 0:
		c.Fn, c.Args = "world.look", []value{v}
		g.add(from, c, wantText(v))
		return
	case 1:
		kw, names := value{K: "dict"}, []string{"alpha", "beta_2"}
		c.Fn, c.Args, c.Kwargs = "world.pack", []value{v, g.value(1, nil)}, map[string]value{}
		for _, name := range names[:g.IntN(3)] {
			c.Kwargs[name] = g.scalar(false)
			kw.L = append(kw.L, strValue(name), c.Kwargs[name])
		}
		v = value{K: "tuple", L: []value{{K: "tuple", L: c.Args}, kw}}
		if len(c.Kwargs) > 1 {
			c.Kwargs, v.L[1] = nil, value{K: "dict"} // their order is the map's
		}
	default:
		c.Fn, c.Args = "world.echo", []value{v}
	}
	if refs := refsIn(v); len(refs) > 0 && g.IntN(2) == 0 {
		c.Slot = g.newSlot(from, refs...)
	}
	g.add(from, c, wantValue(v))
}

// relay calls through several workers, each of which calls the next.
func (g *generator) relay(from, to *worker) {
	if g.relays++; g.relays > 3 {
		return
	}
	var path []value
	for range 1 + g.IntN(3) {
		path = append(path, strValue(pick(g, g.present...).name))
	}
	v := g.value(2, g.refs(from, 2, nil))
	c := command{Op: "call", To: to.name, Fn: "world.relay", Mode: g.mode(), Wrap: g.wrap(from), Args: []value{listOf(path...), v}}
	if refs := refsIn(v); len(refs) > 0 {
		c.Slot = g.newSlot(from, refs...)
	}
	g.add(from, c, wantValue(v))
}

func (g *generator) fail(from, to *worker) {
	r := g.fault(to)
	c := command{Op: "call", To: to.name, Fn: "world.fail", Mode: g.mode(), Wrap: g.wrap(from), Args: faultArgs(r), Raises: &r}
	g.add(from, c, wantFault(from, to, r))
}

// builtin calls an operator, and TorchScript functions by name.
func (g *generator) builtin(from, to *worker) {
	n := 1 + g.IntN(4)
	x := value{K: "tensor", S: "int64", Shape: []int{n}, Strides: []int{1}, N: n, Store: g.stores + 1}
	y := x
	g.stores += 2
	y.Store = g.stores
	for range n {
		x.Data, y.Data = append(x.Data, g.Int64N(1000)-500), append(y.Data, g.Int64N(1000)-500)
	}
	k := g.Int64N(9)
	result := x
	result.Data = slices.Clone(x.Data)
	c := command{Op: "call", To: to.name, Mode: g.mode(), Wrap: g.wrap(from)}
	switch g.IntN(4) {
	case 0:
		c.Fn, c.Args = "torch.mul", []value{x, y}
		if from.isGo() {
			c.Fn = pick(g, "torch.mul", "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor")
		}
		for i := range result.Data {
			result.Data[i] *= y.Data[i]
		}
	case 1:
		c.Fn, c.Args = "torch.add", []value{x, y}
		if from.isGo() && (to.isGo() || g.IntN(2) == 0) {
			c.Fn = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
			c.Args = append(c.Args, intValue(1))
		}
		for i := range result.Data {
			result.Data[i] += y.Data[i]
		}
	case 2:
		c.Fn, c.Args = "scripted.double", []value{x, intValue(int(k))}
		if from.isGo() {
			c.Fn = "__torch__.scripted.double"
		}
		for i := range result.Data {
			result.Data[i] *= k
		}
	default:
		c.Fn = "scripted.total"
		if from.isGo() {
			c.Fn = "__torch__.scripted.total"
		}
		var list []value
		var sum int64
		for _, d := range x.Data {
			list = append(list, intValue(int(d)))
			sum += d
		}
		c.Args = []value{listOf(list...)}
		g.add(from, c, want(fmt.Sprintf("i%d", sum)))
		return
	}
	if from.isGo() && to.isGo() && c.Fn == "torch.mul" {
		c.Fn = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor"
	}
	g.add(from, c, wantValue(result))
}

// timeout lets a call run into its limit.
func (g *generator) timeout(from, to *worker) {
	g.add(from, command{Op: "block", To: to.name, Slot: g.name("gate"), Timeout: 0.15}, want("!timeout"))
}

// next makes a batch: commands that run at the same time.
func (g *generator) next() []task {
	g.batch, g.after, g.touched, g.relays = nil, nil, map[*object]bool{}, 0
	for _, s := range g.slots {
		s.shared = false
	}
	n := pick(g, 1, 1, 2, 4, 8, 12)
	g.serial = n == 1
	for range n {
		from, to := pick(g, g.present...), pick(g, g.present...)
		kind := g.IntN(26)
		if g.later {
			kind = g.IntN(8)
		}
		switch kind {
		case 0, 1, 2, 3:
			g.call(from, to)
		case 4:
			g.relay(from, to)
		case 5:
			g.fail(from, to)
		case 6:
			g.builtin(from, to)
		case 7:
			if g.IntN(3) == 0 {
				g.timeout(from, to)
			}
		case 8, 9, 10:
			g.create(from, to)
		case 11:
			g.own(from, to)
		case 12, 13, 14:
			g.fetch(from, to)
		case 15:
			g.about(from, to)
		case 16, 17, 18:
			g.method(from, to)
		case 19, 20:
			g.pass(from, to)
		case 21, 22:
			g.take(from, to)
		case 23:
			g.spread(from, to)
		default:
			g.drop(from, to)
		}
	}
	return g.batch
}

// settle applies what a batch changed.
func (g *generator) settle() {
	for _, f := range g.after {
		f()
	}
	g.after = nil
}
