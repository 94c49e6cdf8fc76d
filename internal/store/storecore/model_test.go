// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// model is the store said again in the plainest way: maps and one list of open waits, looked through from the start every
// time something comes into being.
type model struct {
	keys   map[string]string
	queues map[string][]string
	waits  []*modelWait
	out    map[int]string
}

type modelWait struct {
	conn    int
	d       wire.Dialect
	id      uint32
	op      wire.Op
	keys    []string
	missing []string // WAIT of PyTorch's dialects: what has not come yet
	size    int64
}

func (m *model) answer(conn int, d wire.Dialect, id uint32, body string) {
	if d == wire.Native {
		body = reply(id, 0, []byte(body))
	}
	m.out[conn] += body
}

func (m *model) has(key string) bool {
	_, ok := m.keys[key]
	return ok || len(m.queues[key]) > 0
}

func (m *model) hasAll(op wire.Op, keys []string) bool {
	for _, k := range keys {
		if _, ok := m.keys[k]; !ok && (op != wire.Wait || len(m.queues[k]) == 0) {
			return false
		}
	}
	return true
}

func (m *model) values(keys []string) string {
	var s strings.Builder
	for _, k := range keys {
		s.WriteString(str(m.keys[k]))
	}
	return s.String()
}

// keyArrived tells all waits that keys exist now.
func (m *model) came(keys ...string) {
	for _, key := range keys {
		for _, w := range slices.Clone(m.waits) {
			w.missing = slices.DeleteFunc(w.missing, func(k string) bool { return k == key })
			over := false
			switch {
			case w.op == wire.Wait && w.d != wire.Native:
				over = len(w.missing) == 0
			case w.op == wire.Wait, w.op == wire.Get, w.op == wire.MultiGet:
				over = slices.Contains(w.keys, key) && m.hasAll(w.op, w.keys)
			}
			if over {
				m.finish(w)
			}
		}
	}
}

func (m *model) finish(w *modelWait) {
	m.waits = slices.DeleteFunc(m.waits, func(o *modelWait) bool { return o == w })
	body := "\x00"
	if w.op == wire.Get || w.op == wire.MultiGet {
		body = m.values(w.keys)
	}
	m.answer(w.conn, w.d, w.id, body)
}

func (m *model) step(r modelRequest) {
	key := ""
	if len(r.keys) > 0 {
		key = r.keys[0]
	}
	if r.d == wire.Legacy && r.op != wire.CancelWait {
		m.waits = slices.DeleteFunc(m.waits, func(w *modelWait) bool { return w.conn == r.conn })
	}
	say := func(body string) { m.answer(r.conn, r.d, r.id, body) }
	ack := func() {
		if r.d == wire.Native {
			say("")
		}
	}
	open := func() *modelWait {
		w := &modelWait{conn: r.conn, d: r.d, id: r.id, op: r.op, keys: r.keys, size: r.num}
		m.waits = append(m.waits, w)
		return w
	}
	store := func(value string) {
		_, had := m.keys[key]
		m.keys[key] = value
		if !had {
			m.came(key)
		}
	}
	old, had := m.keys[key]
	switch r.op {
	case wire.Set:
		store(r.value)
		ack()
	case wire.Append:
		store(old + r.value)
		ack()
	case wire.Add:
		n, _ := strconv.ParseInt(old, 10, 64)
		m.keys[key] = strconv.FormatInt(n+r.num, 10)
		say(num(n + r.num))
		if !had {
			m.came(key)
		}
	case wire.CompareSet:
		switch {
		case !had && r.old != "":
			say(str(r.old))
		case !had || old == r.old:
			store(r.value)
			say(str(r.value))
		default:
			say(str(old))
		}
	case wire.Get, wire.MultiGet:
		if r.d == wire.Native && !m.hasAll(r.op, r.keys) {
			open()
			return
		}
		say(m.values(r.keys))
	case wire.MultiSet:
		for _, k := range r.keys {
			m.keys[k] = r.value
		}
		m.came(r.keys...)
		ack()
	case wire.Check:
		say(map[bool]string{true: "\x00", false: "\x01"}[m.hasAll(wire.Wait, r.keys)])
	case wire.Wait:
		if m.hasAll(r.op, r.keys) {
			say("\x00")
			return
		}
		w := open()
		for _, k := range r.keys {
			if !m.has(k) {
				w.missing = append(w.missing, k)
			}
		}
	case wire.DeleteKey:
		delete(m.keys, key)
		say(num(map[bool]int64{true: 1}[had]))
	case wire.NumKeys:
		say(num(int64(len(m.keys))))
	case wire.QueuePush:
		m.push(key, r.value)
		ack()
	case wire.QueuePop:
		q := m.queues[key]
		switch {
		case len(q) > 0:
			say(num(int64(len(q))) + str(q[0]))
			m.queues[key] = q[1:]
		case r.wait:
			open()
		default:
			say(num(0))
		}
	case wire.QueueLen:
		say(num(int64(len(m.queues[key]))))
	case wire.Barrier:
		n, _ := strconv.ParseInt(old, 10, 64)
		n++
		store(strconv.FormatInt(n, 10))
		if n >= r.num {
			say("\x00")
		} else {
			open()
		}
		for _, w := range slices.Clone(m.waits) {
			if w.op == wire.Barrier && w.keys[0] == key && w.size <= n {
				m.finish(w)
			}
		}
	case wire.CancelWait:
		m.cancel(r)
	default:
		panic(r.op)
	}
}

func (m *model) push(key, value string) {
	for i, w := range m.waits {
		if w.op == wire.QueuePop && w.keys[0] == key {
			m.waits = slices.Delete(m.waits, i, i+1)
			m.answer(w.conn, w.d, w.id, num(1)+str(value))
			return
		}
	}
	m.queues[key] = append(m.queues[key], value)
	woken := false
	for _, w := range slices.Clone(m.waits) {
		i := slices.Index(w.missing, key)
		switch {
		case w.op != wire.Wait:
		case w.d == wire.Native:
			if slices.Contains(w.keys, key) && m.hasAll(wire.Wait, w.keys) {
				m.finish(w)
			}
		case i >= 0 && !woken:
			woken = true
			if w.missing = slices.Delete(w.missing, i, i+1); len(w.missing) == 0 {
				m.finish(w)
			}
		}
	}
}

func (m *model) nonEmptyQueues() (n int) {
	for _, q := range m.queues {
		if len(q) > 0 {
			n++
		}
	}
	return n
}

// clear empties the store. Native clients that wait are told, and those that used it are of no use any more.
func (m *model) clear() {
	for _, w := range m.waits {
		if w.d == wire.Native {
			m.out[w.conn] += gone(w.id)
		}
	}
	m.keys, m.queues, m.waits = map[string]string{}, map[string][]string{}, nil
}

func (m *model) cancel(r modelRequest) {
	if r.d != wire.Native {
		m.waits = slices.DeleteFunc(m.waits, func(w *modelWait) bool { return w.conn == r.conn })
		m.answer(r.conn, r.d, 0, "\x01")
		return
	}
	for i, w := range m.waits {
		if w.conn == r.conn && int64(w.id) == r.num {
			m.waits = slices.Delete(m.waits, i, i+1)
			text := cohort.New("tcpstore: wait", cohort.Canceled, "at the client's request").Error()
			m.out[r.conn] += reply(w.id, byte(cohort.Canceled), []byte(text))
			return
		}
	}
}

// TestModel drives the machine and the model with the same requests of clients of all dialects, cut into pieces, with
// clients that come and go, and compares every byte.
func TestModel(t *testing.T) {
	t.Run("memory", func(t *testing.T) { checkModel(t, newBench) })
	t.Run("logged", func(t *testing.T) { checkModel(t, newLoggedBench) })
}

func checkModel(t *testing.T, newBench func(Limits) *bench) {
	t.Helper()
	rapid.Check(t, func(t *rapid.T) {
		b := newBench(testLimits)
		m := &model{keys: map[string]string{}, queues: map[string][]string{}, out: map[int]string{}}
		var conns []*Conn
		var dialects []wire.Dialect
		alive := func() (list []int) {
			for i, c := range conns {
				if !c.closed {
					list = append(list, i)
				}
			}
			return list
		}
		// Values are numbers, so that ADD and BARRIER never cut a client; keys and queues have different names but for
		// one, where they meet.
		keys := []string{"a", "b", "c", "both"}
		queueKeys := []string{"q", "both"}
		id := uint32(0)
		users := map[int]struct{}{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch {
			case len(alive()) == 0 || rapid.IntRange(0, 9).Draw(t, "act") == 0:
				d := rapid.SampledFrom([]wire.Dialect{wire.Legacy, wire.V, wire.Native}).Draw(t, "dialect")
				conns, dialects = append(conns, b.dial(d)), append(dialects, d)
				continue
			case rapid.IntRange(0, 29).Draw(t, "leave") == 0:
				i := rapid.SampledFrom(alive()).Draw(t, "who")
				b.m.Close(conns[i])
				m.waits = slices.DeleteFunc(m.waits, func(w *modelWait) bool { return w.conn == i })
				continue
			case rapid.IntRange(0, 29).Draw(t, "clear") == 0:
				if n, want := b.clear(), len(m.keys)+m.nonEmptyQueues(); n != want {
					t.Fatalf("clear removed %d, want %d", n, want)
				}
				b.flush()
				m.clear()
				for j, c := range conns {
					switch _, used := users[j]; {
					case !used || b.cuts[c] == nil && c.closed: // it had not used the store, or has left
					case dialects[j] == wire.Native:
						if got, want := sortFrames(b.take(c)), sortFrames(m.out[j]); got != want || !c.standing.stale {
							t.Fatalf("clear: connection %d: got % x, want % x, stale %v", j, got, want, c.standing.stale)
						}
						b.m.Close(c)
					case !errors.Is(b.cuts[c], cohort.Replaced):
						t.Fatalf("clear: connection %d was cut with %v", j, b.cuts[c])
					}
					delete(m.out, j)
				}
				clear(users)
				continue
			}
			i := rapid.SampledFrom(alive()).Draw(t, "conn")
			id++
			r := modelRequest{conn: i, d: dialects[i], id: id}
			ops := []wire.Op{
				wire.Set, wire.Append, wire.Add, wire.CompareSet, wire.Get, wire.MultiGet, wire.MultiSet, wire.Check, wire.Wait, wire.Wait,
				wire.DeleteKey, wire.DeleteKey, wire.NumKeys, wire.CancelWait,
			}
			if r.d != wire.Legacy {
				ops = append(ops, wire.QueuePush, wire.QueuePush, wire.QueuePop, wire.QueuePop, wire.QueueLen, wire.Barrier)
			}
			r.op = rapid.SampledFrom(ops).Draw(t, "op")
			r.value = rapid.SampledFrom([]string{"1", "22", "-3"}).Draw(t, "value")
			r.old = rapid.SampledFrom([]string{"", "1", "22"}).Draw(t, "old")
			r.num = int64(rapid.IntRange(-2, 3).Draw(t, "num"))
			switch r.op {
			case wire.QueuePush, wire.QueuePop, wire.QueueLen:
				r.keys = []string{rapid.SampledFrom(queueKeys).Draw(t, "queue")}
				r.wait = r.d == wire.Native && rapid.Bool().Draw(t, "wait")
			case wire.MultiGet, wire.MultiSet, wire.Check:
				r.keys = rapid.SliceOfN(rapid.SampledFrom(keys), 0, 4).Draw(t, "keys")
			case wire.Wait:
				r.keys = rapid.SliceOfNDistinct(rapid.SampledFrom(append([]string{"q"}, keys...)), 0, 4, rapid.ID).Draw(t, "keys")
			case wire.Barrier:
				r.keys = []string{rapid.SampledFrom([]string{"bar1", "bar2"}).Draw(t, "barrier")}
			case wire.CancelWait:
				r.num = int64(rapid.IntRange(0, int(id)).Draw(t, "target"))
			case wire.Append:
				r.value = "7"
				r.keys = []string{"a"}
				if len(m.keys["a"]) > 10 { // stays a number
					r.op = wire.Get
				}
			default:
				r.keys = []string{rapid.SampledFrom(keys).Draw(t, "key")}
			}
			m.step(r)
			users[i] = struct{}{}
			for bytes := r.encode(); len(bytes) > 0; {
				n := rapid.IntRange(1, len(bytes)).Draw(t, "piece")
				b.send(conns[i], bytes[:n])
				bytes = bytes[n:]
			}
			for j, c := range conns {
				if err := b.cuts[c]; err != nil && !errors.Is(err, cohort.Replaced) {
					t.Fatalf("%+v: cut %d: %v", r, j, err)
				}
				got, want := b.take(c), m.out[j]
				if dialects[j] == wire.Native { // what completes in the same step may come in any order
					got, want = sortFrames(got), sortFrames(want)
				}
				if got != want && !c.closed {
					t.Fatalf("%+v: connection %d (%s): got % x, want % x", r, j, dialects[j], got, want)
				}
				delete(m.out, j)
			}
			if b.m.waits.n != len(m.waits) {
				t.Fatalf("%+v: %d waits, want %d", r, b.m.waits.n, len(m.waits))
			}
		}
		for _, c := range conns {
			b.m.Close(c)
		}
		b.flush()
		if b.m.admission.logged != 0 || b.m.log != nil && b.m.log.flying+len(b.m.log.committed) != 0 {
			t.Fatalf("left: %d bytes of commands", b.m.admission.logged)
		}
		if b.m.waits.n != 0 || len(b.m.waits.byKey) != 0 || len(b.m.waits.barriers) != 0 || b.m.admission.in != 0 ||
			b.m.admission.out != 0 || b.m.admission.waits != 0 {
			t.Fatalf("left: %d waits, %d and %d lists, %d bytes", b.m.waits.n, len(b.m.waits.byKey), len(b.m.waits.barriers),
				b.m.admission.in+b.m.admission.out+b.m.admission.waits)
		}
	})
}
