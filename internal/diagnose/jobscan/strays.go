// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package jobscan

import (
	"context"
	"net"
	"slices"
	"time"

	"github.com/cohort-dist/cohort/internal/diagnose/verdict"
)

// namesTime bounds the resolution of all names.
const namesTime = time.Second

// findOrphans looks for ranks of one program that have exited up in different jobs because they use different stores.
func findOrphans(ctx context.Context, all []Job) {
	ctx, cancel := context.WithTimeout(ctx, namesTime)
	defer cancel()
	n := names{}
	for i := range all {
		for k := range all {
			if i != k && parted(&all[i], &all[k]) && !n.sameServer(ctx, all[i].Store, all[k].Store) {
				for _, r := range all[k].Ranks {
					all[i].Orphans = append(all[i].Orphans, verdict.Stray{Rank: r.Rank, PID: r.PID, Store: all[k].Store})
				}
			}
		}
	}
}

// parted reports whether two jobs look like parts of one: they run the same command in the same folder and want the same number of
// ranks, each lacks some, and none is in both.
func parted(a, b *Job) bool {
	first, second := a.Ranks[0], b.Ranks[0]
	if a.ID != a.Store || b.ID != b.Store || a.World != b.World || first.Command != second.Command || first.folder != second.folder || first.folder == "" {
		return false
	}
	numbers := map[int]bool{}
	for _, r := range slices.Concat(a.Ranks, b.Ranks) {
		numbers[r.Rank] = true
	}
	return len(numbers) == len(a.Ranks)+len(b.Ranks) && len(numbers) <= a.World
}

// names are the addresses of hosts, each asked for once.
type names map[string][]string

func (n names) addresses(ctx context.Context, host string) []string {
	if _, known := n[host]; !known {
		n[host], _ = net.DefaultResolver.LookupHost(ctx, host) // none of one that does not resolve
	}
	return n[host]
}

// sameServer reports whether two addresses mean the same server under different names, or may do so: there was no time to ask.
func (n names) sameServer(ctx context.Context, a, b string) bool {
	hostA, portA, errA := net.SplitHostPort(a)
	hostB, portB, errB := net.SplitHostPort(b)
	if errA != nil || errB != nil || portA != portB {
		return false
	}
	addrsA, addrsB := n.addresses(ctx, hostA), n.addresses(ctx, hostB)
	unknown := ctx.Err() != nil && (addrsA == nil || addrsB == nil)
	return unknown || slices.ContainsFunc(addrsA, func(addr string) bool { return slices.Contains(addrsB, addr) })
}
