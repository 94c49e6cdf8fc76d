// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rrefcore

// tombs remembers deleted forks of PyTorch peers, so that a late or repeated message cannot bring them back: the last ones.
// Two tables take turns, since a table from which the oldest are taken one by one grows beyond what it holds.
type tombs struct{ young, old map[ID]struct{} }

func (t *tombs) has(fork ID) bool {
	_, young := t.young[fork]
	_, old := t.old[fork]
	return young || old
}

// add remembers a fork, and forgets the older half if there are most of them.
func (t *tombs) add(fork ID, most int) {
	if t.has(fork) {
		return
	}
	if t.young == nil || len(t.young) >= max(most/2, 1) {
		t.young, t.old = t.old, t.young
		clear(t.young)
		if t.young == nil {
			t.young = map[ID]struct{}{}
		}
	}
	t.young[fork] = struct{}{}
}
