// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package storecmd

import (
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/tui"
	"github.com/cohort-dist/cohort/internal/sys/portowner"
)

// maxCommand is how much of a command the view has room for, beside rank, process id and address.
const maxCommand = 24

// namer gives names to clients that did not tell one: PyTorch's, where they run on this machine and we may look at them.
type namer struct {
	find  func([]netip.AddrPort) map[netip.AddrPort]portowner.Owner
	known map[string]string // by address, for those that wait; empty: cannot be found out
}

// name fills in the names of waits. Each client is looked for once.
func (n *namer) name(waits []tui.Wait) {
	known := make(map[string]string, len(waits))
	var unknown []netip.AddrPort
	for _, w := range waits {
		if w.Name != "" {
			continue
		}
		name, asked := n.known[w.Client]
		known[w.Client] = name
		if addr, err := netip.ParseAddrPort(w.Client); err == nil && !asked {
			unknown = append(unknown, addr)
		}
	}
	n.known = known
	if len(unknown) > 0 {
		for addr, owner := range n.find(unknown) {
			known[addr.String()] = processName(owner)
		}
	}
	for i, w := range waits {
		if w.Name == "" {
			waits[i].Name = known[w.Client]
		}
	}
}

func processName(owner portowner.Owner) string {
	name := "pid " + strconv.Itoa(owner.PID)
	if owner.Rank != "" {
		name = "rank " + owner.Rank + ", " + name
	}
	if owner.Command != "" {
		program, arguments, _ := strings.Cut(owner.Command, " ")
		name += " " + tui.Cut(strings.TrimSpace(path.Base(program)+" "+arguments), maxCommand)
	}
	return name
}
