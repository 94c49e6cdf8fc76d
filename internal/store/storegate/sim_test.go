// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storegate

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/cohort-dist/cohort/internal/store/storecore"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

var (
	simSeeds = flag.Int("gate.seeds", 150, "how many seeds the simulation of gateways runs")
	simFirst = flag.Uint64("gate.first", 1, "the first of them")
)

var simLimits = storecore.Limits{Limits: wire.DefaultLimits, Memory: 1 << 28, Output: 16 << 20, Waits: 1000}

// sim is a store, gateways and clients in one process. Bytes move only when the simulation says so, in pieces of any length; connections
// between gateways and the store are cut anywhere, in both directions.
type sim struct {
	t       *testing.T
	r       *rand.Rand
	seed    uint64
	now     int64
	store   *storecore.Machine
	gates   []*simGate
	clients []*simClient
	slow    *simGate // nil: none
	keys    int
	history []porcupine.Operation
	counts  map[string]int64 // what the clients have added to each counter
	log     *simLog          // nil: the store is in memory
}

// simGate is a gateway with its connection.
type simGate struct {
	gate    *gate
	machine *storecore.Machine
	up      []byte // to the store
	down    []byte // to the gateway
	in      wire.Inbox
	conn    *storecore.Conn // at the store; nil: no connection
	late    []lateConn      // older connections whose bytes still arrive at the store
}

type lateConn struct {
	conn  *storecore.Conn
	bytes []byte
}

// simClient is one client of a gateway, of PyTorch's dialect or of cohort's.
type simClient struct {
	n      int
	gate   *simGate
	conn   *storecore.Conn
	native bool
	got    []byte
	op     *simOp
	done   int
	cut    error
}

// simOp is what a client has asked.
type simOp struct {
	op   wire.Op
	key  string
	arg  string
	num  int64
	call int64
}

func newSim(t *testing.T, seed uint64) *sim {
	t.Helper()
	s := &sim{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 7)), counts: map[string]int64{}}
	s.store = storecore.New(storecore.Config{Limits: simLimits})
	for range 1 + s.r.IntN(3) {
		g := &simGate{gate: newGate(Config{Kept: 1 << 20, Token: func() (id [wire.SessionIDSize]byte) {
			binary.LittleEndian.PutUint64(id[:], s.r.Uint64())
			return id
		}})}
		g.machine = storecore.New(storecore.Config{Limits: simLimits, Relay: g.gate})
		g.gate.Machine = g.machine
		s.gates = append(s.gates, g)
		for range 1 + s.r.IntN(5) {
			s.addClient(g)
		}
	}
	if s.keys = 1 + s.r.IntN(3); s.r.IntN(2) == 0 {
		s.slow = s.gates[0]
	}
	return s
}

func (s *sim) addClient(g *simGate) {
	c := &simClient{n: len(s.clients), gate: g, native: s.r.IntN(3) == 0}
	c.conn = g.machine.Open("client", c)
	hello := wire.AppendValidate(nil)
	if c.native {
		hello = wire.AppendUpgrade(hello)
	}
	g.machine.Receive(c.conn, hello)
	s.clients = append(s.clients, c)
}

// connect gives a gateway a connection.
func (s *sim) connect(g *simGate) {
	g.conn = s.store.Open("gateway", nil)
	s.store.Receive(g.conn, wire.AppendValidate(nil))
	g.up, g.down, g.in = nil, nil, wire.Inbox{}
	g.gate.Connected()
}

// cut breaks a gateway's connection. What is on its way to the store may be lost from any byte on, or arrive much later.
func (s *sim) cut(g *simGate) {
	rest := g.up[:s.r.IntN(len(g.up)+1)]
	switch s.r.IntN(3) {
	case 0:
		s.store.Receive(g.conn, rest)
		s.store.Close(g.conn)
	case 1:
		s.store.Close(g.conn)
	default:
		g.late = append(g.late, lateConn{g.conn, bytes.Clone(rest)})
	}
	g.conn = nil
	g.gate.Disconnected()
}

// step moves something.
func (s *sim) step(faults bool) {
	s.now += 1 + int64(s.r.IntN(1000))
	g := s.gates[s.r.IntN(len(s.gates))]
	switch n := s.r.IntN(20); {
	case g.conn == nil:
		if s.r.IntN(3) == 0 {
			s.connect(g)
		}
	case n == 0 && faults:
		s.cut(g)
	case n == 1 && faults && len(g.late) > 0:
		l := g.late[0]
		g.late = g.late[1:]
		s.store.Receive(l.conn, l.bytes)
		s.store.Close(l.conn)
	case n == 2 && faults && s.log != nil && s.r.IntN(4) == 0:
		s.restart()
	case n < 5:
		g.up = append(g.up, g.gate.Take(1+s.r.IntN(2000))...)
	case n < 11:
		k := s.r.IntN(len(g.up) + 1)
		s.store.Receive(g.conn, g.up[:k])
		g.up = append([]byte(nil), g.up[k:]...)
	case n < 17 && g == s.slow && s.r.IntN(12) > 0: // its answers are on their way for long
	case n < 17:
		s.read(g, s.r.IntN(len(g.down)+1))
	case n == 17:
		g.gate.Tick()
	}
	s.turn()
	if c := s.clients[s.r.IntN(len(s.clients))]; c.op == nil && c.cut == nil && faults {
		s.ask(c)
		s.turn()
	}
}

// read gives a gateway k bytes of what the store has sent to it.
func (s *sim) read(g *simGate, k int) {
	for k > 0 {
		n := copy(g.in.Space(), g.down[:k])
		g.in.Filled(n)
		g.down, k = g.down[n:], k-n
		for {
			frame, kept, err := g.in.Next(1 << 20)
			if err != nil {
				s.t.Fatal(err)
			}
			if frame == nil {
				break
			}
			g.gate.Receive(frame, kept)
		}
	}
	if _, err := g.gate.Fault(); err != nil {
		s.cut(g)
	}
}

// turn lets all machines go on and moves what they have for others.
func (s *sim) turn() {
	for range 3 {
		if s.log != nil {
			s.writeLog()
		}
		for _, m := range append([]*storecore.Machine{s.store}, s.machines()...) {
			m.Tick(s.now)
			if m.Busy() {
				m.Resume()
			}
			m.Admit()
			for _, c := range m.Dirty() {
				out := bytes.Join(c.Pending(nil, math.MaxInt), nil)
				if m.Sent(c, len(out)); m == s.store {
					s.fromStore(c, out)
				} else {
					s.toClient(c.Owner.(*simClient), c, out) //nolint:errcheck // all of them are
				}
			}
		}
	}
}

func (s *sim) machines() (all []*storecore.Machine) {
	for _, g := range s.gates {
		all = append(all, g.machine)
	}
	return all
}

func (s *sim) fromStore(c *storecore.Conn, out []byte) {
	for _, g := range s.gates {
		if g.conn != c {
			continue
		}
		if c.Cut() != nil {
			s.cut(g)
			return
		}
		g.down = append(g.down, out...)
	}
}

func (s *sim) toClient(c *simClient, conn *storecore.Conn, out []byte) {
	if conn.Cut() != nil {
		s.t.Fatalf("seed %d: client %d was cut: %v", s.seed, c.n, conn.Cut())
	}
	if c.got = append(c.got, out...); c.op != nil {
		s.answer(c)
	}
}

// run plays one seed and looks at the result.
func (s *sim) run(steps int) {
	for range steps {
		s.step(true)
	}
	for i := 0; ; i++ {
		s.step(false)
		waiting := 0
		for _, c := range s.clients {
			if c.op != nil && !s.waitsForever(c) {
				waiting++
			}
		}
		for _, g := range s.gates {
			if !g.gate.Ready() || g.gate.Pending() || len(g.up)+len(g.down) > 0 { // arrivals at a barrier are still to be counted
				waiting++
			}
		}
		if waiting == 0 && (s.log == nil || len(s.log.gathered) == 0 && s.log.committed == len(s.log.entries)) {
			break
		}
		if i > 200_000 {
			s.t.Fatalf("seed %d: %d clients wait for ever: %s", s.seed, waiting, s.describe())
		}
	}
	s.check()
}

func (s *sim) describe() string {
	var text strings.Builder
	for _, c := range s.clients {
		if c.op != nil {
			_, _ = fmt.Fprintf(&text, "\nclient %d (native %v): %v %q", c.n, c.native, c.op.op, c.op.key)
		}
	}
	for i, g := range s.gates {
		asked, waiting := g.gate.UnderWay()
		_, _ = fmt.Fprintf(&text, "\ngateway %d: %d asked, %d wait, ready %v, full %v, window %v", i, asked, waiting,
			g.gate.Ready(), g.gate.Full(), g.gate.window())
	}
	return text.String()
}

// ask has a client ask for something.
func (s *sim) ask(c *simClient) {
	o := &simOp{call: s.now, key: "/k" + strconv.Itoa(s.r.IntN(s.keys))}
	d, b := wire.V, []byte(nil)
	if c.native {
		d, b = wire.Native, wire.BeginFrame(nil, uint32(c.done))
	}
	c.done++
	switch s.r.IntN(8) {
	case 0, 1:
		o.op, o.key, o.num = wire.Add, "/n"+strconv.Itoa(s.r.IntN(2)), int64(s.r.IntN(5))
		b = wire.AppendAdd(b, d, o.key, o.num)
		s.counts[o.key] += o.num
	case 2:
		o.op, o.arg = wire.CompareSet, strconv.Itoa(c.n*10000+c.done)
		b = wire.AppendCompareSet(b, d, o.key, nil, []byte(o.arg))
		if s.r.IntN(2) == 0 {
			o.op, o.arg = wire.DeleteKey, ""
			b = b[:0]
			if c.native {
				b = wire.BeginFrame(nil, uint32(c.done-1))
			}
			b = wire.AppendKey(b, d, wire.DeleteKey, o.key)
		}
	case 3:
		o.op, o.key, o.arg = wire.Append, "/l", fmt.Sprintf("<%d.%d>", c.n, c.done)
		b = wire.AppendKeyValue(b, d, wire.Append, o.key, []byte(o.arg))
	case 4:
		o.op, o.arg = wire.Set, strconv.Itoa(c.n*10000+c.done)
		b = wire.AppendSet(b, d, o.key, []byte(o.arg))
	case 5:
		o.op, o.key = wire.Barrier, fmt.Sprintf("/b%d", s.r.IntN(4))
		o.num = int64(1 + s.r.IntN(len(s.clients)))
		b = wire.AppendBarrier(b, d, o.key, o.num)
	default:
		if o.op = wire.Get; c.native { // which would wait
			o.op = wire.Check
			b = wire.AppendKeys(b, d, wire.Check, o.key)
		} else {
			b = wire.AppendKey(b, d, wire.Get, o.key)
		}
	}
	c.op = o
	if c.native {
		b = wire.EndFrame(b, 0, 0)
	} else if !wire.HasReply(d, o.op) { // the answer to what follows says when it is done
		b = wire.AppendKeys(b, d, wire.Check, "/none")
	}
	c.gate.machine.Receive(c.conn, b)
}

// answer looks whether a client has its answer.
func (s *sim) answer(c *simClient) {
	o := c.op
	d, op, body := wire.V, o.op, c.got
	if c.native {
		d = wire.Native
		_, size, _ := wire.ParseFrame(c.got)
		if size == 0 || len(c.got) < size {
			return
		}
		if c.got[wire.FrameHeader] != 0 {
			s.t.Fatalf("seed %d: client %d: %q", s.seed, c.n, c.got)
		}
		body = c.got[wire.FrameHeader+1 : size]
	} else if !wire.HasReply(d, op) {
		op = wire.Check
	}
	r, n, short, err := wire.ParseReply(d, op, 1, body, &wire.DefaultLimits)
	if err != nil || short {
		if err != nil {
			s.t.Fatal(err)
		}
		return
	}
	if !c.native && n != len(c.got) {
		s.t.Fatalf("seed %d: client %d got %q", s.seed, c.n, c.got)
	}
	r.Value = bytes.Clone(r.Value)
	c.got, c.op = nil, nil
	s.history = append(s.history, porcupine.Operation{ClientId: c.n, Input: *o, Call: o.call, Output: r, Return: s.now})
}

// waitsForever reports whether a client is at a barrier that too few have come to.
func (s *sim) waitsForever(c *simClient) bool {
	return c.op.op == wire.Barrier && s.arrived(c.op.key) < c.op.num
}

func (s *sim) arrived(key string) (n int64) {
	for _, h := range s.history {
		if o := h.Input.(simOp); o.op == wire.Barrier && o.key == key { //nolint:errcheck // all of them are
			n++
		}
	}
	for _, c := range s.clients {
		if c.op != nil && c.op.op == wire.Barrier && c.op.key == key {
			n++
		}
	}
	return n
}

// get asks the store itself.
func (s *sim) get(key string) []byte {
	c := s.store.Open("test", nil)
	s.store.Receive(c, wire.AppendKey(wire.AppendValidate(nil), wire.V, wire.Get, key))
	out := bytes.Join(c.Pending(nil, math.MaxInt), nil)
	s.store.Close(c)
	return bytes.Clone(out[8:])
}

// check compares the store with what the clients have done, and their history with a model.
func (s *sim) check() {
	for key, want := range s.counts {
		if got, _ := strconv.ParseInt(string(s.get(key)), 10, 64); got != want {
			s.t.Errorf("seed %d: counter %s is %d, the clients have added %d", s.seed, key, got, want)
		}
	}
	list := s.get("/l")
	for _, h := range s.history {
		o := h.Input.(simOp) //nolint:errcheck // all of them are
		if o.op == wire.Append && bytes.Count(list, []byte(o.arg)) != 1 {
			s.t.Errorf("seed %d: %s was appended %d times", s.seed, o.arg, bytes.Count(list, []byte(o.arg)))
		}
	}
	for i := range 4 {
		key := fmt.Sprintf("/b%d", i)
		if got, _ := strconv.ParseInt("0"+string(s.get(key)), 10, 64); got != s.arrived(key) {
			s.t.Errorf("seed %d: %d were counted at barrier %s, %d have come", s.seed, got, key, s.arrived(key))
		}
	}
	if !porcupine.CheckOperations(simModel, s.history) {
		s.t.Errorf("seed %d: the history is not linearizable", s.seed)
	}
}

// simModel is one key: a value, a counter or a text.
var simModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		by := map[string][]porcupine.Operation{}
		for _, h := range history {
			if key := h.Input.(simOp).key; key[1] != 'b' { //nolint:errcheck // all inputs are
				by[key] = append(by[key], h)
			}
		}
		for _, p := range by {
			parts = append(parts, p)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		value, o, r := state.(string), input.(simOp), output.(wire.Reply) //nolint:errcheck // they always are
		switch o.op {
		case wire.Set:
			return true, o.arg
		case wire.Append:
			return true, value + o.arg
		case wire.Get:
			return string(r.Value) == value, value
		case wire.Check:
			return (r.Byte == wire.Ready) == (value != ""), value
		case wire.DeleteKey:
			return (r.Num == 1) == (value != ""), ""
		case wire.Add:
			n, _ := strconv.ParseInt("0"+value, 10, 64)
			return r.Num == n+o.num, strconv.FormatInt(n+o.num, 10)
		case wire.CompareSet:
			if value == "" {
				return string(r.Value) == o.arg, o.arg
			}
			return string(r.Value) == value, value
		}
		return true, value
	},
}

// TestSimulation: whatever is cut, delayed and sent again, and whenever a store with a log is killed and made again from that, everything
// is applied exactly once, everybody is answered, and the history of all clients of all gateways is linearizable.
func TestSimulation(t *testing.T) {
	t.Parallel()
	for seed := *simFirst; seed < *simFirst+uint64(*simSeeds); seed++ {
		s := newSim(t, seed)
		if seed%2 == 0 {
			s.keepLog()
		}
		if s.run(400); t.Failed() {
			t.Fatalf("replay it with -gate.first %d -gate.seeds 1", seed)
		}
	}
}
