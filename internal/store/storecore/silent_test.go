// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecore

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cohort-dist/cohort"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
)

// TestSilentConnsAreBounded: of connections that have sent nothing only so many stay, the last ones of the address that has most of them.
// Those that have sent something stay, and with each of them one that has not, as PyTorch 1.13 makes it.
func TestSilentConnsAreBounded(t *testing.T) {
	t.Parallel()
	const bound = 8
	m := New(Config{Limits: testLimits, Silent: bound})
	open := func(host string, n int) (all []*Conn) {
		for i := range n {
			all = append(all, m.Open(fmt.Sprintf("%s:%d", host, i), nil))
		}
		return all
	}
	say := func(c *Conn) { m.Receive(c, wire.AppendPing(wire.AppendValidate(nil), wire.V, 1)) }
	cut := func(all []*Conn) (n int) {
		for _, c := range all {
			if errors.Is(c.Cut(), cohort.Exhausted) {
				n++
			}
		}
		return n
	}
	old := open("192.0.2.1", 20) // ten ranks with two connections each
	for i := 0; i < len(old); i += 2 {
		say(old[i])
	}
	if cut(old) == 0 { // the first of them came before any had spoken
		t.Error("all ranks have come at once, without a word, and are in")
	}
	for _, c := range old {
		m.Close(c)
	}

	var ranks []*Conn
	for range 10 {
		two := open("192.0.2.1", 2)
		say(two[0])
		ranks = append(ranks, two...)
	}
	late := open("192.0.2.2", 1)
	flood := open("[2001:db8::66]", 1000)
	if got := cut(ranks) + cut(late); got != 0 {
		t.Errorf("%d clients are cut", got)
	}
	if got := cut(flood); got != len(flood)-bound+1 || flood[len(flood)-1].Cut() != nil {
		t.Errorf("%d of %d silent connections are cut, %d may stay", got, len(flood), bound-1)
	}
	say(late[0])
	for m.DropSilent() {
	}
	if got := cut(ranks) + cut(late); got != 0 || cut(flood) != len(flood) {
		t.Errorf("without room %d clients are cut, and %d of %d silent connections", got, cut(flood), len(flood))
	}
	for _, all := range [][]*Conn{ranks, late, flood} {
		for _, c := range all {
			m.Close(c)
		}
	}
	if len(m.silent.byHost) != 0 || m.silent.beyond != 0 {
		t.Errorf("%d addresses and %d connections are left", len(m.silent.byHost), m.silent.beyond)
	}
}
