// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcconf

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/rpc/cohortwire"
	"github.com/cohort-dist/cohort/internal/rpc/rpcwire"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/store"
)

// frameControl is the type of the frames of the control stream between Go workers.
const frameControl = rpcwire.Type(cohortwire.FirstAgentType + 1)

// helloHead is the length of what precedes the name in a hello: an id and a nonce.
const helloHead = 2 + 16

// faults is what PyTorch's faulty agent does, on the wire instead of in the sender: it loses the first frames of a type, or
// holds them up. It can also be told to cut connections.
type faults struct {
	mu      sync.Mutex
	lose    map[rpcwire.Type]int
	delay   map[rpcwire.Type]time.Duration
	held    map[rpcwire.Type]chan struct{} // closed when they are released
	again   map[rpcwire.Type]time.Duration // after which a copy follows
	seen    map[rpcwire.Type]int
	lost    map[rpcwire.Type]int
	only    func(from, to string) bool // which directions of which pairs; nil means all
	proxies []*frameProxy
}

func newFaults() *faults {
	return &faults{
		lose: map[rpcwire.Type]int{}, delay: map[rpcwire.Type]time.Duration{}, again: map[rpcwire.Type]time.Duration{},
		held: map[rpcwire.Type]chan struct{}{}, seen: map[rpcwire.Type]int{}, lost: map[rpcwire.Type]int{},
	}
}

// loseNext makes the next n frames of each type disappear.
func (f *faults) loseNext(n int, types ...rpcwire.Type) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range types {
		f.lose[t] = n
	}
}

// delayAll holds frames of a type up; zero lets them pass again.
func (f *faults) delayAll(d time.Duration, types ...rpcwire.Type) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range types {
		f.delay[t] = d
	}
}

// hold keeps frames of a type until release is called.
func (f *faults) hold(t rpcwire.Type) (release func()) {
	gate := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held[t] = gate
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.held, t)
		close(gate)
	})
}

// gate is closed when frames of a type are released; nil: they are not held.
func (f *faults) gate(t rpcwire.Type) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held[t]
}

// repeatAll sends frames of a type a second time, later.
func (f *faults) repeatAll(after time.Duration, types ...rpcwire.Type) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range types {
		f.again[t] = after
	}
}

// between restricts the faults to frames that one worker sends to another.
func (f *faults) between(only func(from, to string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.only = only
}

// judge decides about one frame.
func (f *faults) judge(t rpcwire.Type, from, to string) (pass bool, after, again time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[t]++
	if f.only != nil && !f.only(from, to) {
		return true, 0, 0
	}
	if f.lose[t] > 0 {
		f.lose[t]--
		f.lost[t]++
		return false, 0, 0
	}
	return true, f.delay[t], f.again[t]
}

func (f *faults) count(t rpcwire.Type) (seen, lost int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[t], f.lost[t]
}

// cut resets all connections between the workers.
func (f *faults) cut() (n int) {
	for _, p := range f.proxies {
		n += p.cut()
	}
	return n
}

// swallow turns all connections that exist into ones that take everything and bring nothing.
func (f *faults) swallow() {
	for _, p := range f.proxies {
		p.mu.Lock()
		for c := range p.conns {
			p.conns[c] = false
		}
		p.mu.Unlock()
	}
}

// frameProxy stands before one worker's port and passes frames on as faults says.
type frameProxy struct {
	faults *faults
	ln     net.Listener
	target string
	work   sync.WaitGroup
	done   chan struct{}
	mu     sync.Mutex
	conns  map[net.Conn]bool // whether what comes from it is passed on
}

func startFrameProxy(t *testing.T, f *faults, target string) *frameProxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	p := &frameProxy{faults: f, ln: ln, target: target, done: make(chan struct{}), conns: map[net.Conn]bool{}}
	p.work.Go(p.accept)
	t.Cleanup(func() {
		close(p.done)
		_ = ln.Close()
		p.cut()
		p.work.Wait()
	})
	return p
}

func (p *frameProxy) cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.conns)
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
	return n / 2
}

func (p *frameProxy) accept() {
	for {
		client, err := p.ln.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = true, true
		p.mu.Unlock()
		select {
		case <-p.done: // the last cut may have missed these
			_, _ = client.Close(), server.Close()
		default:
		}
		var up, down atomic.Pointer[string] // who sends, known from the hello
		p.work.Go(func() { p.pass(server, client, &up, &down) })
		p.work.Go(func() { p.pass(client, server, &down, &up) })
	}
}

// pass copies one direction: the bytes of the handshake as they are, then frame by frame. A delayed frame does not hold
// up those behind it, as in PyTorch's agent.
func (p *frameProxy) pass(to, from net.Conn, sender, receiver *atomic.Pointer[string]) {
	defer func() {
		_, _ = to.Close(), from.Close()
		p.mu.Lock()
		delete(p.conns, to)
		delete(p.conns, from)
		p.mu.Unlock()
	}()
	var writing sync.Mutex
	write := func(b []byte) {
		writing.Lock()
		defer writing.Unlock()
		_, _ = to.Write(b)
	}
	r := bufio.NewReaderSize(from, 1<<16)
	framed, source := false, from
	for {
		if _, err := r.Peek(1); err != nil {
			return
		}
		if !framed {
			head, _ := r.Peek(r.Buffered())
			at := helloAt(head)
			if at < 0 { // a hello is written as a whole, so it is never cut
				write(head)
				_, _ = r.Discard(len(head))
				continue
			}
			write(head[:at])
			_, _ = r.Discard(at)
			framed = true
		}
		raw := make([]byte, cohortwire.HeaderSize)
		if _, err := io.ReadFull(r, raw); err != nil {
			return
		}
		h, err := cohortwire.ParseHeader(raw, cohortwire.Limits{})
		if err != nil {
			panic(err) // the proxy itself is wrong
		}
		rest := make([]byte, uint64(h.Body)+h.Bytes)
		if _, err := io.ReadFull(r, rest); err != nil {
			return
		}
		frame := append(raw, rest...)
		if h.Type == cohortwire.Hello {
			f, _, err := h.Parse(rest)
			if err != nil {
				panic(err)
			}
			name := string(f.Payload[helloHead:])
			sender.Store(&name)
		}
		from, to := "", ""
		if s, r := sender.Load(), receiver.Load(); s != nil && r != nil {
			from, to = *s, *r
		}
		p.mu.Lock()
		passes := p.conns[source]
		p.mu.Unlock()
		if !passes {
			continue
		}
		gate := p.faults.gate(rpcwire.Type(h.Type))
		pass, after, again := p.faults.judge(rpcwire.Type(h.Type), from, to)
		later := func(d time.Duration) {
			p.work.Go(func() {
				select {
				case <-time.After(d):
					write(frame)
				case <-p.done:
				}
			})
		}
		if pass && again > 0 {
			later(after + again)
		}
		switch {
		case !pass:
		case gate != nil:
			p.work.Go(func() {
				select {
				case <-gate:
					write(frame)
				case <-p.done:
				}
			})
		case after > 0:
			later(after)
		default:
			write(frame)
		}
	}
}

// helloAt finds the first frame of a link in the bytes of a handshake.
func helloAt(b []byte) int {
	for i := 0; i+8 <= len(b); i++ {
		if binary.LittleEndian.Uint16(b[i+4:]) == uint16(cohortwire.Hello) && b[i+6] == 0 && b[i+7] == 0xc7 {
			return i
		}
	}
	return -1
}

// freeAddr returns an address to listen on a little later. No other process and no outgoing connection takes a port of a
// loopback address that only this test knows; where there is only one such address, the port is merely likely to be free.
func freeAddr(t *testing.T) string {
	t.Helper()
	own := fmt.Sprintf("127.%d.%d.%d:0", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	l, err := net.Listen("tcp", own)
	if err != nil {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	must(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// startFaulty makes a static world whose workers reach each other through proxies.
func startFaulty(t *testing.T, size int, opts ...rpc.Option) (*world, *faults) {
	t.Helper()
	f := newFaults()
	w := &world{T: t, ctx: bounded(t), st: store.NewMemory()}
	for rank := range size {
		w.nodes = append(w.nodes, newNode(rank))
	}
	listen := make([]string, size)
	for i := range listen {
		listen[i] = freeAddr(t)
		f.proxies = append(f.proxies, startFrameProxy(t, f, listen[i]))
	}
	t.Cleanup(w.close)
	must(t, parallel(size, func(i int) error {
		return w.nodes[i].join(w.ctx, w.st, append([]rpc.Option{
			rpc.WithRank(cohort.Rank(i)), rpc.WithWorldSize(size), rpc.WithTransports(rpc.TransportCohort),
			rpc.WithAddr(listen[i]), rpc.WithAdvertise(f.proxies[i].ln.Addr().String()),
		}, opts...)...)
	}))
	// Every pair has its connection before the faults begin.
	w.every(func(n *node) error {
		for _, to := range w.nodes {
			if _, err := rpc.Call[any](w.ctx, n.Agent, name(to.rank), "t.nothing"); err != nil {
				return err
			}
		}
		return nil
	})
	return w, f
}
