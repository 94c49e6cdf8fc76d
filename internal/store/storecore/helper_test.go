// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"testing"

	"go.uber.org/goleak"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/testing/mutation"
)

func TestMain(m *testing.M) {
	code := mutation.Main(m)
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var testLimits = Limits{Limits: wire.DefaultLimits, Memory: 1 << 30, Output: 64 << 20, Waits: 100}

// bench drives a machine as a server would, with sockets of unlimited room.
type bench struct {
	m    *Machine
	log  []Entry // with a machine that has one
	cuts map[*Conn]error
	got  map[*Conn][]byte
}

func newBench(limits Limits) *bench {
	return &bench{
		m:    New(Config{Limits: limits, Stats: func() []byte { return []byte("{}") }}),
		cuts: map[*Conn]error{}, got: map[*Conn][]byte{},
	}
}

// newLoggedBench is newBench with a log in memory.
func newLoggedBench(limits Limits) *bench {
	b := newBench(limits)
	b.m.config.Logged, b.m.config.Server, b.m.log = true, 7, newChangelog()
	return b
}

// commit has all commands logged and applied.
func (b *bench) commit() {
	for all := b.m.Commands(); len(all) > 0; all = b.m.Commands() {
		from := len(b.log)
		for _, k := range all {
			b.log = append(b.log, Entry{Index: uint64(len(b.log) + 1), Data: k.Data, Local: k})
		}
		b.m.Commit(b.log[from:])
	}
}

// clear empties the store at the wish of the process.
func (b *bench) clear() (keys int) {
	if b.m.log == nil {
		return b.m.Clear()
	}
	b.m.ProposeClear(func(n int, _ error) { keys = n })
	b.commit()
	return keys
}

// dial opens a connection that speaks d.
func (b *bench) dial(d wire.Dialect) *Conn {
	c := b.m.Open("peer", nil)
	switch d {
	case wire.V:
		b.send(c, wire.AppendValidate(nil))
	case wire.Native:
		b.send(c, wire.AppendUpgrade(wire.AppendValidate(nil)))
	default:
	}
	return c
}

func (b *bench) send(c *Conn, data []byte) {
	b.m.Receive(c, data)
	b.flush()
}

func (b *bench) flush() {
	b.commit()
	b.deliver()
	for b.m.Busy() {
		b.m.Tick(b.m.clock.now)
		b.m.Resume()
		b.commit()
		b.deliver()
	}
}

// turn is what a driver does with those that wait, without sending anything.
func (b *bench) turn() {
	b.m.Tick(b.m.clock.now)
	b.m.Resume()
	b.m.Admit()
}

func (b *bench) deliver() {
	for dirty := b.m.Dirty(); len(dirty) > 0; dirty = b.m.Dirty() {
		for _, c := range dirty {
			if c.Cut() != nil {
				b.cuts[c] = c.Cut()
				continue
			}
			p := pending(c)
			b.got[c] = append(b.got[c], p...)
			b.m.Sent(c, len(p))
		}
	}
}

// pending is all that c is owed.
func pending(c *Conn) []byte { return bytes.Join(c.Pending(nil, math.MaxInt), nil) }

// take returns what c was sent since the last call.
func (b *bench) take(c *Conn) string {
	s := string(b.got[c])
	delete(b.got, c)
	return s
}

// frame writes a native request.
func frame(id uint32, write func([]byte) []byte) []byte {
	return wire.EndFrame(write(wire.BeginFrame(nil, id)), 0, 0)
}

// reply writes a native reply.
func reply(id uint32, status byte, body []byte) string {
	return string(wire.EndFrame(append(append(wire.BeginFrame(nil, id), status), body...), 0, 0))
}

func str(s string) string { return string(wire.AppendString(nil, s)) }
func num(n int64) string  { return string(wire.AppendInt(nil, n)) }
