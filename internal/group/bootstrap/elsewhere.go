// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"context"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort/internal/group/gloo"
	"github.com/cohort-dist/cohort/internal/util/printable"
	"github.com/cohort-dist/cohort/internal/util/ranklist"
	"github.com/cohort-dist/cohort/store"
)

// Ranks that have different prefixes of one store wait for each other for their whole time. Where the store lists its keys, as all but
// PyTorch's own do, each can say under which prefix the others have come.

// elsewhere says under which other prefix missing ranks have joined a group of this one's name, "" where that is not known.
func (a *attempt) elsewhere(ctx context.Context, missing []int) string {
	p := a.p
	if p.Parent != nil || len(missing) == 0 {
		return ""
	}
	keys, err := store.ListKeys(ctx, store.UnderlyingNonPrefix(p.Store))
	if err != nil {
		return ""
	}
	for _, key := range keys {
		for _, rank := range missing {
			if prefix, found := a.otherPrefix(key, rank); found {
				return "; " + ranklist.Words([]int{rank}) + " has come under the prefix " + quoted(prefix) +
					" of the store, and this rank's is " + quoted(p.wholePrefix())
			}
		}
	}
	return ""
}

// otherPrefix returns what stands before a key that a rank writes when it joins, if that is not the prefix of this rank.
func (a *attempt) otherPrefix(key string, rank int) (prefix string, found bool) {
	for _, tail := range a.joiningKeys(rank) {
		prefix, found = strings.CutSuffix(key, tail)
		whole := prefix == "" || strings.HasSuffix(prefix, "/")
		if prefix = strings.TrimSuffix(prefix, "/"); found && whole && prefix != a.p.wholePrefix() {
			return prefix, true
		}
	}
	return "", false
}

// wholePrefix is the prefix of this rank's keys in the store below all others.
func (p *Plan) wholePrefix() string {
	whole := p.Prefix
	for s := p.Store; ; {
		below, ok := s.(*store.PrefixStore)
		if !ok {
			return strings.TrimSuffix(whole, "/")
		}
		whole, s = below.Key(whole), below.Underlying()
	}
}

// joiningKeys are the keys that a rank writes when it joins, behind the prefix.
func (a *attempt) joiningKeys(rank int) (tails []string) {
	own := func(key string) {
		tail := strings.TrimPrefix(strings.TrimPrefix(key, a.p.Prefix), "/")
		tails = append(tails, tail)
	}
	for _, layout := range []gloo.Layout{gloo.Torch113, gloo.Torch26} {
		own(layout.FirstKey(a.p.meshPrefix(layout), rank))
	}
	own(a.Place.Key(rank))
	return tails
}

func quoted(prefix string) string { return strconv.Quote(printable.Line(prefix)) }
