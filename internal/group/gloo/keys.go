// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package gloo

import (
	"crypto/sha1" //nolint:gosec // PyTorch names groups by it
	"encoding/hex"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
)

// Layout is how a version of PyTorch names the store keys around its gloo groups. The leading "/" that TCPStore puts in
// front of every key is the store's business.
type Layout uint8

// The layouts.
const (
	// Torch113 is PyTorch 1.13 (and 2.0): groups side by side, a store barrier and a sequence number after each.
	Torch113 Layout = iota
	// Torch26 is PyTorch 2.x up to 2.6: sub-groups nest under the default group, with the device type in the prefix.
	Torch26
)

// DefaultPrefix is the prefix of everything below a store that came from a rendezvous. A store that the user made
// is used without it.
const DefaultPrefix = "default_pg"

// Join joins a prefix and a key as PyTorch's PrefixStore does.
func Join(prefix, key string) string {
	if prefix == "" {
		return key
	}
	return prefix + "/" + key
}

// GroupName is the name of the k-th group of a world; 0 is the default group. Both versions count on every rank for every
// new_group, members or not.
func GroupName(k int) string { return strconv.Itoa(k) }

// LocalSyncName is the name of a group made with use_local_synchronization: the members' global ranks in order and the
// number of groups that this process has, hashed.
func LocalSyncName(ranks []int, groups int) string {
	parts := make([]string, 0, len(ranks)+1)
	for _, r := range ranks {
		parts = append(parts, strconv.Itoa(r))
	}
	parts = append(parts, strconv.Itoa(groups))
	sum := sha1.Sum([]byte(strings.Join(parts, "_"))) //nolint:gosec // PyTorch names groups by it
	return hex.EncodeToString(sum[:])
}

// GroupBase is the prefix that names a group: that of PyTorch's store of the group. In Torch26 a sub-group starts from the
// default group's own prefix, and names begin with a slash themselves.
func (l Layout) GroupBase(base, name string) string {
	if l == Torch113 {
		return Join(base, name)
	}
	if name == GroupName(0) {
		return Join(base, "0/")
	}
	return Join(Join(base, "0/"), name+"/")
}

// MeshPrefix is the Config.Prefix of a group, below base (normally DefaultPrefix).
func (l Layout) MeshPrefix(base, name string) string {
	if l == Torch113 {
		return l.GroupBase(base, name)
	}
	return Join(l.GroupBase(base, name), "cpu/")
}

// WrapperPrefix is the prefix of the helper group that TORCH_DISTRIBUTED_DEBUG=DETAIL puts beside a group.
func (l Layout) WrapperPrefix(base, name string) string {
	if l == Torch113 {
		return Join(base, "pg_wrapper:"+name)
	}
	return Join(l.MeshPrefix(base, name), "pg_wrapper:"+name)
}

// SplitBase is the prefix of a group that was split off the group with the given prefix. Unlike that of others it is also the
// Config.Prefix.
func SplitBase(parent, name string) string { return Join(parent, name+"/") }

// SplitName is the name that PyTorch gives to a group that is split off without one.
func SplitName(parent string, ranks []cohort.Rank) string {
	parts := make([]string, len(ranks))
	for i, r := range ranks {
		parts[i] = r.String()
	}
	return parent + ":split:[" + strings.Join(parts, ", ") + "]"
}

// MergeRankKey counts the ranks that have joined a merge: each takes the number that it finds.
const MergeRankKey = "mergeGroupRank"

// ReconfigurePrefix is the Config.Prefix of a group that was made by reconfiguring the one with the given Config.Prefix.
func ReconfigurePrefix(prefix string, uuid int64) string {
	return Join(prefix, "reconfigure/"+strconv.FormatInt(uuid, 10))
}

// ClaimKey is set by the new rank 0 of a reconfiguration before its record: a prefix is used once.
func ClaimKey(prefix string) string { return Join(prefix, "claimed") }

// BarrierKey is the counter of the store barrier after the k-th group was made. Torch113 always passes it, on all ranks of
// the world; Torch26 only when TORCH_DIST_INIT_BARRIER=1.
func (l Layout) BarrierKey(base string, k int) string {
	if l == Torch113 {
		return Join(base, "store_based_barrier_key:"+strconv.Itoa(k+1))
	}
	if k == 0 {
		return Join(base, "store_based_barrier_key:0")
	}
	return Join(Join(base, "0/"), "store_based_barrier_key:"+strconv.Itoa(k))
}

// LastWorkerKey is set to "1" by the rank that completes a Torch26 store barrier.
func (l Layout) LastWorkerKey(base string, k int) string {
	return l.BarrierKey(base, k) + ":last_worker"
}

// SequenceKey holds 8 bytes that group rank 0 sets and the others wait for, after the barrier; "" where there is none.
func (l Layout) SequenceKey(base, name string) string {
	if l != Torch113 {
		return ""
	}
	return Join(l.GroupBase(base, name), "SEQ_NUM_STORE_KEY")
}

// recordKey is the key of rank's address record of a device.
func recordKey(prefix string, device, rank int) string {
	return Join(prefix, strconv.Itoa(device)+"/"+strconv.Itoa(rank))
}

// hostKey is where generations A and B put rank's host name.
func hostKey(prefix string, device, rank int) string {
	return Join(prefix, strconv.Itoa(device)+"/rank_"+strconv.Itoa(rank))
}

// FirstKey is the first key that rank publishes of a mesh with this prefix.
func (l Layout) FirstKey(prefix string, rank int) string {
	if l == Torch113 {
		return hostKey(prefix, 0, rank)
	}
	return recordKey(prefix, 0, rank)
}

// GenerationOf is the generation of a layout's usual PyTorch.
func (l Layout) GenerationOf() Generation {
	if l == Torch113 {
		return A
	}
	return C
}
