// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"slices"
	"strings"
	"testing"
	"time"

	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// TestPollers: a client that asks for a key again and again and has the same answer each time is found, by whatever request it asks.
func TestPollers(t *testing.T) {
	t.Parallel()
	get := func(b []byte) []byte { return wire.AppendKey(b, wire.V, wire.Get, "counter") }
	read := func(b []byte) []byte { return wire.AppendAdd(b, wire.V, "counter", 0) }
	check := func(b []byte) []byte { return wire.AppendKeys(b, wire.V, wire.Check, "missing") }
	there := func(b []byte) []byte { return wire.AppendKeys(b, wire.V, wire.Check, "counter") }
	count := func(b []byte) []byte { return wire.AppendAdd(b, wire.V, "counter", 1) }
	set := func(b []byte) []byte { return wire.AppendSet(b, wire.V, "progress", []byte("1")) }
	two := func(b []byte) []byte { return wire.AppendKeys(b, wire.V, wire.Check, "counter", "long") }
	other := func(b []byte) []byte { return wire.AppendKey(b, wire.V, wire.Get, "long") }
	for name, c := range map[string]struct {
		asks   []func([]byte) []byte
		every  time.Duration
		pause  time.Duration
		key    string
		times  uint64
		answer string
	}{
		"get":            {asks: repeat(10, get), every: time.Second, key: "counter", times: 10, answer: "2"},
		"add of nothing": {asks: repeat(10, read), every: time.Second, key: "counter", times: 10, answer: "2"},
		"get and add": {
			asks: []func([]byte) []byte{get, read, get, read}, every: time.Second, key: "counter", times: 4,
			answer: "2",
		},
		"check":                  {asks: repeat(10, check), every: time.Second, key: "missing", times: 10},
		"check of what is there": {asks: repeat(10, there), every: time.Second},
		"a counter that counts":  {asks: repeat(10, count), every: time.Second},
		"for a moment":           {asks: repeat(10, get), every: time.Millisecond},
		"twice":                  {asks: repeat(2, get), every: 10 * time.Second},
		"not any more":           {asks: repeat(10, get), every: time.Second, pause: time.Minute},
		"now and then":           {asks: repeat(10, get), every: time.Minute, pause: time.Minute, key: "counter", times: 10, answer: "2"},
		"a long value":           {asks: repeat(10, other), every: time.Second},
		"until it is there":      {asks: append(repeat(10, check), there), every: time.Second},
		"until two are there":    {asks: append(repeat(10, check), two), every: time.Second},
		"beside a count":         {asks: append(repeat(10, check), count), every: time.Second},
		"beside a set":           {asks: append(repeat(10, check), set), every: time.Second},
		"between sets": {asks: slices.Concat(repeat(2, check), repeat(1, set), repeat(2, check), repeat(1, set),
			repeat(2, check)), every: time.Second},
		"after a set": {asks: append(repeat(1, set), repeat(5, check)...), every: time.Second, key: "missing", times: 5},
		"after something else": {
			asks: append(repeat(5, check), repeat(4, get)...), every: time.Second, key: "counter", times: 4,
			answer: "2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(testLimits)
			b.m.Tick(1)
			b.send(b.dial(wire.V), wire.AppendSet(wire.AppendAdd(nil, wire.V, "counter", 2), wire.V, "long",
				[]byte(strings.Repeat("x", 100))))
			client, now := b.dial(wire.V), int64(1)
			for i, ask := range c.asks {
				if i > 0 {
					now += int64(c.every)
				}
				b.m.Tick(now)
				b.send(client, ask(nil))
			}
			b.m.Tick(now + int64(c.pause))
			found := b.m.Snapshot(10).Pollers
			if c.key == "" {
				if len(found) > 0 {
					t.Errorf("found %+v", found)
				}
				return
			}
			if len(found) != 1 || found[0].Key != c.key || found[0].Asks != c.times || found[0].Answer != c.answer ||
				found[0].Peer != "peer" {
				t.Errorf("found %+v, want %+v", found, c)
			}
		})
	}
}

func repeat(n int, ask func([]byte) []byte) []func([]byte) []byte {
	all := make([]func([]byte) []byte, n)
	for i := range all {
		all[i] = ask
	}
	return all
}
