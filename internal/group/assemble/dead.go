// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package assemble

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/store"
)

// A rank can die before another rank has a connection to it. The others find that out by themselves, and use these notes in the store.

// MarkConnected says that this rank has connected to all others. It is for groups with PyTorch ranks, where Go ranks do
// not wait for each other with [Place.Connected]. Like [Place.GiveUp] it does so though ctx has ended, and within a
// second: the others would take this rank for dead.
func (p *Place) MarkConnected(ctx context.Context) error {
	failpoint.At("assemble.up")
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpLimit)
	defer cancel()
	return p.note(limited, p.upKey(), p.rank)
}

// LeftOnPurpose reports whether a rank that cannot be reached has said why before: it has connected, or given up.
func (p *Place) LeftOnPurpose(ctx context.Context, rank int) (bool, error) {
	for _, key := range []string{p.upKey(), p.gaveUpKey()} {
		if ranks, err := p.ranksUnder(ctx, key); err != nil || slices.Contains(ranks, rank) {
			return true, err
		}
	}
	return false, nil
}

// GaveUp returns the ranks that have given the generation up.
func (p *Place) GaveUp(ctx context.Context) ([]int, error) { return p.ranksUnder(ctx, p.gaveUpKey()) }

// FirstToGiveUp returns the rank that gave the first generation up before the others did, -1 if none has said so, and those that had not
// come, which it probably waited for: none if it had not come itself. Another process may have taken a place: then it is only the first
// that saw it.
func FirstToGiveUp(ctx context.Context, s store.Store, prefix string, size int) (first int, missing []int, err error) {
	p := &Place{store: s, root: prefix, size: size}
	said, err := p.readList(ctx, p.gaveUpKey())
	word, _, _ := strings.Cut(string(said), " ")
	ranks := p.parse([]byte(word))
	if len(ranks) == 0 {
		return -1, nil, err
	}
	if missing, err = p.Missing(ctx); slices.Contains(missing, ranks[0]) {
		missing = nil
	}
	return ranks[0], missing, err
}

// MarkDead notes that a rank has died while others had not come. The ranks go on waiting: another process may take its place.
func (p *Place) MarkDead(ctx context.Context, rank int) error {
	failpoint.At("assemble.markdead")
	return p.note(ctx, p.deadKey(), rank)
}

// Dead returns the ranks of which this was noted.
func (p *Place) Dead(ctx context.Context) ([]int, error) { return p.ranksUnder(ctx, p.deadKey()) }

// AwaitReplacement waits until ctx ends, for a key that no rank sets: its name shows in a listing of the store that the
// named ranks have died. It ends for good with the generation, when other processes take their places.
func (p *Place) AwaitReplacement(ctx context.Context, ranks string) error {
	failpoint.At("assemble.replacement")
	return p.store.Wait(ctx, p.Prefix()+"/"+ranks+joinedThenDied)
}

// joinedThenDied is the end of that key.
const joinedThenDied = ", which joined and then died"

// note appends a rank to a list.
func (p *Place) note(ctx context.Context, key string, rank int) error {
	return store.Append(ctx, p.store, key, []byte(strconv.Itoa(rank)+" "))
}

// ranksUnder returns the ranks in a list, none if the list is missing.
func (p *Place) ranksUnder(ctx context.Context, key string) ([]int, error) {
	said, err := p.readList(ctx, key)
	return p.parse(said), err
}

// readList returns a list as it stands in the store, nil if there is none.
func (p *Place) readList(ctx context.Context, key string) ([]byte, error) {
	failpoint.At("assemble.noted")
	if has, err := p.store.Check(ctx, key); err != nil || !has {
		return nil, err
	}
	return p.store.Get(ctx, key)
}

// parse returns the ranks in a list, each of them once, in order.
func (p *Place) parse(said []byte) []int {
	var ranks []int
	for word := range strings.FieldsSeq(string(said)) {
		if r, err := strconv.Atoi(word); err == nil && r >= 0 && r < p.size {
			ranks = append(ranks, r)
		}
	}
	slices.Sort(ranks)
	return slices.Compact(ranks)
}

func (p *Place) upKey() string { return p.Prefix() + "/up" }

func (p *Place) deadKey() string { return p.Prefix() + "/dead" }
