// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package elastic

import (
	"fmt"
	"slices"
	"time"
)

func (s *sim) problem(format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf("%v: ", s.now)+fmt.Sprintf(format, args...))
}

// check holds a round against what must be true of every round.
func (s *sim) check(r *Round) {
	if before, again := s.rounds[r.UUID]; again {
		if !slices.Equal(before.Handles, r.Handles) {
			s.problem("uuid %d has the lists %v and %v", r.UUID, before.Handles, r.Handles)
		}
		return
	}
	s.checkAlone(r)
	s.rounds[r.UUID] = &Round{UUID: r.UUID, Handles: slices.Clone(r.Handles)}
	if len(r.Handles) < s.low || len(r.Handles) > s.high {
		s.problem("a round of %d members, want %d to %d", len(r.Handles), s.low, s.high)
	}
	var names []ID
	for _, h := range r.Handles {
		var owner *simMember
		for _, m := range s.members {
			if m.handle == h {
				owner = m
			}
		}
		switch {
		case owner == nil:
			s.problem("%q is not the present handle of any member", h)
			continue
		case owner.finished || owner.released:
			s.problem("member %d, which has finished, is in a round", owner.id)
		case owner.dead && s.now-max(owner.diedAt, s.began) > simSilence+time.Second:
			s.problem("member %d, dead since %v, is in a round", owner.id, owner.diedAt)
		}
		names = append(names, owner.id)
	}
	if len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) {
		s.problem("a member is twice in %v", names)
	}
	// Who stays keeps its place before others that stay, and before those that come.
	var stay []ID
	for _, n := range s.last {
		if slices.Contains(names, n) {
			stay = append(stay, n)
		}
	}
	if !s.forgotten(stay) && !slices.Equal(names[:len(stay)], stay) {
		s.problem("the order was %v and is %v", s.last, names)
	}
	if s.doneIn != 0 && s.doneIn == s.lastUUID && len(stay) == 0 {
		s.problem("a member of round %d has finished, and round %d begins without any member of it", s.lastUUID, r.UUID)
	}
	s.last, s.lastUUID = names, r.UUID
}

// checkReleased holds that a coordinator that was started again waits for no member that was notified that it may leave.
func (s *sim) checkReleased() {
	for _, seat := range s.desk.seats {
		if seat.running && s.members[seat.member].released {
			s.problem("member %d, which may go, is waited for", seat.member)
		}
	}
}

// checkAlone holds that no other group trains when a round begins, of which all members are well.
func (s *sim) checkAlone(r *Round) {
	for uuid, other := range s.rounds {
		well := 0
		for _, m := range s.members {
			if m.training && m.round.UUID == uuid && m.cutUntil == 0 && !m.hung && !m.dead {
				well++
			}
		}
		if uuid != r.UUID && well == len(other.Handles) {
			s.problem("round %d begins while all members of round %d train", r.UUID, uuid)
		}
	}
}

// checkEnd holds that a job ends only when its work is done, and no member works on it any more.
func (s *sim) checkEnd(why string) {
	if why != "" || !slices.ContainsFunc(s.members, func(m *simMember) bool { return m.finished }) {
		s.problem("the job ends, and no member has finished: %s", why)
	}
	for _, m := range s.members {
		if m.training && !m.dead && m.cutUntil == 0 {
			s.problem("the job ends while member %d trains", m.id)
		}
	}
}

// checkLeft holds that in the end no member waits, unless too few are left for a round.
func (s *sim) checkLeft() {
	var left []ID
	for _, m := range s.members {
		if m.dead || m.released {
			continue
		}
		left = append(left, m.id)
		if m.finished {
			s.problem("member %d has finished, and waits", m.id)
		}
	}
	if len(left) >= s.low || s.ended && len(left) > 0 {
		s.problem("members %v wait for a round, ended: %v", left, s.ended)
	}
}

// forgotten reports whether one of these may have been left out in between and have come as a newcomer.
func (s *sim) forgotten(members []ID) bool {
	return slices.ContainsFunc(members, func(id ID) bool { return s.members[id].cutUntil > 0 || s.members[id].hung })
}

// watch has a member look now and then whether its round is over.
func (s *sim) watch(m *simMember, r *Round) {
	s.after(50*time.Millisecond+s.random(400*time.Millisecond), func() {
		switch {
		case m.round != r || m.dead:
		case s.over[r.UUID]:
			s.ask(m)
		default:
			s.watch(m, r)
		}
	})
}

// look is the coordinator's regular look at the signs of life, as slow as the store is.
func (s *sim) look() {
	if s.ended {
		return
	}
	for _, m := range s.members {
		if !m.known || s.down {
			continue
		}
		if !m.dead && m.cutUntil <= s.now {
			m.heard = s.now
		}
		if s.now-m.heard > simSilence {
			m.known = false
			s.note("member %d is silent", m.id)
			s.perform(s.desk.silent(m.id))
		}
	}
	pause := 100 * time.Millisecond
	if s.rng.IntN(20) == 0 {
		pause = s.random(time.Second)
	}
	s.after(pause, s.look)
}
