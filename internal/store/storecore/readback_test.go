// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore_test

import (
	"strconv"
	"testing"

	"github.com/cohort-dist/cohort/internal/store/storecore"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// TestReadBack: only a client that has set a key and read that one counts, whichever way it reads, for as long as it is connected.
func TestReadBack(t *testing.T) {
	m := storecore.New(storecore.Config{Limits: storecore.Limits{Limits: wire.DefaultLimits, Memory: 1 << 24, Output: 1 << 20, Waits: 8}})
	asker := newClaimer(t, m, "asker")
	readBack := func(key string) bool {
		t.Helper()
		status, body := asker.ask(wire.AppendKeys(nil, wire.Native, wire.Check, wire.ReadBackPrefix+key))
		if status != 0 || len(body) != 1 {
			t.Fatalf("status %d, % x", status, body)
		}
		return body[0] == wire.Ready
	}
	torch := func(peer string) (c *storecore.Conn, set func(string), get func(...string)) {
		c = m.Open(peer, nil)
		m.Receive(c, wire.AppendValidate(nil))
		return c, func(key string) {
				m.Receive(c, wire.AppendKeyValue(nil, wire.V, wire.Set, key, []byte("v")))
			}, func(keys ...string) {
				if len(keys) == 1 {
					m.Receive(c, wire.AppendKey(nil, wire.V, wire.Get, keys[0]))
				} else {
					m.Receive(c, wire.AppendKeys(nil, wire.V, wire.MultiGet, keys...))
				}
			}
	}
	a, set, get := torch("a")
	_, setB, getB := torch("b")
	set("/0")
	setB("/1")
	get("/1")
	getB("/0")
	if readBack("/0") || readBack("/1") || readBack("/2") {
		t.Error("each has read the other's key only")
	}
	get("/0", "/1")
	if !readBack("/0") || readBack("/1") {
		t.Error("a has read its own key, b has not")
	}
	for i := range 7 {
		set("/more" + strconv.Itoa(i))
		get("/more" + strconv.Itoa(i))
	}
	if !readBack("/0") {
		t.Error("it is forgotten after seven others")
	}
	m.Close(a)
	if readBack("/0") {
		t.Error("it counts although its client is gone")
	}
	getB("/1")
	if !readBack("/1") {
		t.Error("b has read its own key")
	}
	asker.ask(wire.AppendKeyValue(nil, wire.Native, wire.Set, "/go", []byte("v")))
	asker.ask(wire.AppendKey(nil, wire.Native, wire.Get, "/go"))
	if readBack("/go") {
		t.Error("a Go client's reads count")
	}
}
