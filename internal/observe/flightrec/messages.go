// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec

import (
	"fmt"
	"slices"
)

// messages looks for sends without a receive and receives without a send.
func (t *team) messages(g *groupDiagnosis) bool {
	var oldest *Entry
	var owner *view
	waitsFor := map[int]int{} // group rank -> group rank that it wants a message from
	for _, v := range t.present {
		for _, e := range v.open {
			if !e.P2P || t.matched(v, e) {
				continue
			}
			if oldest == nil || v.age(e) > owner.age(oldest) {
				oldest, owner = e, v
			}
			if !e.sends() && e.Peer >= 0 {
				if _, ok := waitsFor[v.Rank]; !ok {
					waitsFor[v.Rank] = e.Peer
				}
			}
		}
	}
	if oldest == nil {
		return false
	}
	if ring := circle(waitsFor); len(ring) > 0 {
		g.Finding, g.Ranks = deadlock, t.globals(ring)
		slices.Sort(g.Ranks)
		g.Sentence = fmt.Sprintf("deadlock: %s all wait to receive, each from another one of them", ranksText(g.Ranks))
		if len(ring) == 2 {
			g.Sentence = fmt.Sprintf("deadlock: %s both wait to receive from the other", ranksText(g.Ranks))
		}
		return true
	}
	g.Finding = StuckMessage
	g.Sentence = fmt.Sprintf("rank %d is stuck in %s for %s: %s", owner.global, oldest.text(&t.About), span(owner.age(oldest)),
		t.missingHalf(g, owner, oldest))
	if oldest.State == Failed {
		g.Sentence = fmt.Sprintf("rank %d's %s failed after %s (%s): %s", owner.global, oldest.text(&t.About),
			span(owner.age(oldest)), oldest.Err,
			t.missingHalf(g, owner, oldest))
	}
	return true
}

// missingHalf describes what the peer of a stuck message does.
func (t *team) missingHalf(g *groupDiagnosis, owner *view, e *Entry) string {
	if e.Peer < 0 {
		g.Ranks = []int{owner.global}
		return "no rank has sent to it"
	}
	peer := t.globalOf(e.Peer)
	g.Ranks = []int{peer}
	if e.Peer >= len(t.views) || t.views[e.Peer] == nil {
		return fmt.Sprintf("rank %d gave no dump%s", peer, t.foreign())
	}
	v := t.views[e.Peer]
	verb := "sent"
	if e.sends() {
		verb = "received"
	}
	text := fmt.Sprintf("rank %d never %s it", peer, verb)
	for _, o := range v.open {
		if o.P2P && o.Peer == owner.Rank && o.sends() != e.sends() && o.Tag != e.Tag {
			return text + fmt.Sprintf(", but has a %s with tag %d (this one has tag %d)", o.Op, o.Tag, e.Tag)
		}
	}
	if len(v.open) > 0 {
		return text + fmt.Sprintf(", it is in %s for %s", v.open[0].text(&t.About), span(v.age(v.open[0])))
	}
	return text + ", it waits for nothing"
}

// matched reports whether the other half of a message is posted too, so that it is only on its way.
func (t *team) matched(v *view, e *Entry) bool {
	match := func(p *view) bool {
		return p != nil && slices.ContainsFunc(p.open, func(o *Entry) bool {
			return o.P2P && o.sends() != e.sends() && (o.Peer == v.Rank || (o.Peer < 0 && !o.sends())) && o.Tag == e.Tag
		})
	}
	if e.Peer >= 0 {
		return e.Peer < len(t.views) && match(t.views[e.Peer])
	}
	return slices.ContainsFunc(t.present, func(p *view) bool { return p != v && match(p) })
}

// circle finds ranks that wait for each other.
func circle(waitsFor map[int]int) []int {
	starts := make([]int, 0, len(waitsFor))
	for r := range waitsFor {
		starts = append(starts, r)
	}
	slices.Sort(starts)
	for _, start := range starts {
		seen := []int{start}
		for r := start; ; {
			next, ok := waitsFor[r]
			if !ok {
				break
			}
			if i := slices.Index(seen, next); i >= 0 {
				return seen[i:]
			}
			seen = append(seen, next)
			r = next
		}
	}
	return nil
}
