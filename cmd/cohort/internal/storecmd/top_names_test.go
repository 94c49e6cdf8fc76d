// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecmd

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
)

func TestNamerAsksOnceForEachClient(t *testing.T) {
	here := netip.MustParseAddrPort("127.0.0.1:4000")
	var asked [][]netip.AddrPort
	n := namer{find: func(addrs []netip.AddrPort) map[netip.AddrPort]portowner.Owner {
		asked = append(asked, addrs)
		return map[netip.AddrPort]portowner.Owner{here: {PID: 8, Command: "/usr/bin/python3 train.py", Rank: "2"}}
	}}
	for range 3 {
		waits := []tui.Wait{
			{Client: "127.0.0.1:4000"},
			{Client: "10.0.0.9:5000"},
			{Client: "127.0.0.1:6000", Name: "rank 1, nodea pid 7"},
			{Client: "in memory"},
			{Client: "127.0.0.1:4000"},
		}
		n.name(waits)
		var names []string
		for _, w := range waits {
			names = append(names, w.Name)
		}
		const process = "rank 2, pid 8 python3 train.py"
		if diff := cmp.Diff([]string{process, "", "rank 1, nodea pid 7", "", process}, names); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	if len(asked) != 1 {
		t.Errorf("looked %d times: %v", len(asked), asked)
	}
	n.name(nil)
	if len(n.known) != 0 {
		t.Errorf("%v are kept although there are no waiters", n.known)
	}
}
