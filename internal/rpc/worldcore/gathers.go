// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cohort-dist/cohort"
)

const (
	// maxGathers bounds the all-gathers that peers can begin before this worker does.
	maxGathers = 1024
	// maxLost bounds how many all-gathers a leader remembers that it has given up, for workers that come late.
	maxLost = 64
)

// Gathers is what one worker knows of PyTorch's all-gathers: workers send an object to the leader, whose name sorts first,
// and the leader sends all of them to everybody. Messages may arrive before this worker has entered an all-gather, and
// copies of them after it has left it. The caller serialises the calls.
type Gathers struct {
	counts map[string]int // by names: the next one
	all    map[string]*Gathering
	lost   map[string][]lostGather // by names: the last ones that this worker has given up as the leader
	// unreportedDeaths is who has died before it could tell this worker, the leader, which all-gather is next, by names.
	unreportedDeaths map[string]string
}

// lostGather is an all-gather that could not be completed, because a worker has died.
type lostGather struct{ id, dead string }

// Item is an object with the name of the worker that it is from.
type Item struct {
	Name   string
	Object any
}

// Report says that a worker has reported to the leader of an all-gather.
type Report struct{ ID, From string }

// Gathering is one all-gather as far as it has got here.
type Gathering struct {
	names string // if it was reported
	Items []Item // in the order of arrival
	Done  bool   // all are here, or it has failed
	Err   error  // why it has failed
}

func (g *Gathering) has(name string) bool {
	return slices.ContainsFunc(g.Items, func(x Item) bool { return x.Name == name })
}

// NewGathers returns the state of a worker that has entered none.
func NewGathers() *Gathers {
	return &Gathers{
		counts: map[string]int{}, all: map[string]*Gathering{}, lost: map[string][]lostGather{}, unreportedDeaths: map[string]string{},
	}
}

// gatherName is what PyTorch calls the all-gathers of some workers.
func gatherName(names []string) string {
	return strings.Join(slices.Sorted(slices.Values(names)), "")
}

// Known reports whether it is known which all-gather of these names is next.
func (g *Gathers) Known(names []string) bool {
	_, known := g.counts[gatherName(names)]
	return known
}

// First says which all-gather of these names is next, unless that is known.
func (g *Gathers) First(names []string, n int) {
	if !g.Known(names) {
		g.counts[gatherName(names)] = n
		delete(g.unreportedDeaths, gatherName(names))
	}
}

// Enter enters the next all-gather of these names. Next may be complete already.
func (g *Gathers) Enter(names []string) (id string, s *Gathering, err error) {
	name := gatherName(names)
	n := g.counts[name]
	g.counts[name] = n + 1
	id = name + strconv.Itoa(n)
	s, err = g.gathering(id)
	return id, s, err
}

// Leave forgets an all-gather.
func (g *Gathers) Leave(id string) { delete(g.all, id) }

// GiveUp notes that an all-gather that this worker leads cannot be completed, because a worker has died, for those who come
// later.
func (g *Gathers) GiveUp(id string, names []string, dead string) {
	name := gatherName(names)
	g.lost[name] = append(g.lost[name], lostGather{id, dead})
	g.lost[name] = g.lost[name][max(0, len(g.lost[name])-maxLost):]
}

// GiveUpNext notes that this worker, the leader, cannot enter the next all-gather of these names, because a worker has died
// that had to tell which one it is. It returns who has reported meanwhile, and forgets what was reported.
func (g *Gathers) GiveUpNext(names []string, dead string) []Report {
	name := gatherName(names)
	if g.Known(names) {
		return nil
	}
	g.unreportedDeaths[name] = dead
	var reports []Report
	for _, id := range slices.Sorted(maps.Keys(g.all)) {
		if s := g.all[id]; s.names == name {
			for _, x := range s.Items {
				reports = append(reports, Report{id, x.Name})
			}
			delete(g.all, id)
		}
	}
	return reports
}

// Rejoined notes that there is a worker of this name again: it can be asked.
func (g *Gathers) Rejoined(worker string) {
	maps.DeleteFunc(g.unreportedDeaths, func(_, dead string) bool { return dead == worker })
}

// Of returns an all-gather, or nil.
func (g *Gathers) Of(id string) *Gathering { return g.all[id] }

// Missing names who has not reported to the leader.
func (g *Gathers) Missing(id string, names []string) []string {
	s := g.all[id]
	if s == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(names), s.has)
}

func (g *Gathers) gathering(id string) (*Gathering, error) {
	s := g.all[id]
	if s == nil {
		if len(g.all) >= maxGathers {
			return nil, cohort.Newf("rpc: all_gather", cohort.Exhausted, "%d all-gathers wait for this worker", maxGathers)
		}
		s = &Gathering{}
		g.all[id] = s
	}
	return s, nil
}

// over reports whether this worker has left an all-gather: then a message of it is a copy, sent again because its answer
// was lost with the connection, or too late. It is over too if this worker, the leader, cannot enter it.
func (g *Gathers) over(id string, names []string) bool {
	name := gatherName(names)
	if g.unreportedDeaths[name] != "" {
		return true
	}
	n, err := strconv.Atoi(strings.TrimPrefix(id, name))
	begun, known := g.counts[name]
	return err == nil && known && n < begun && g.all[id] == nil
}

// Lost is who has died, if this worker has given up an all-gather for that. A worker that reports to it then has to be notified.
func (g *Gathers) Lost(id string, names []string) string {
	for _, lost := range g.lost[gatherName(names)] {
		if lost.id == id {
			return lost.dead
		}
	}
	return g.unreportedDeaths[gatherName(names)]
}

// ToLeader is _gather_to_leader at the leader. again says that the sender may repeat what it has said. done reports that
// the all-gather is complete with it.
func (g *Gathers) ToLeader(id, from string, object any, names []string, again bool) (done bool, err error) {
	if !slices.Contains(names, from) {
		return false, refuse("AssertionError", "%q is not one of the workers of this all-gather", from)
	}
	if g.over(id, names) {
		return false, nil
	}
	s, err := g.gathering(id)
	if err != nil {
		return false, err
	}
	s.names = gatherName(names)
	if s.has(from) {
		if again {
			return false, nil
		}
		return false, refuse("AssertionError", "%s reported intent sequence id %s again. ", from, id)
	}
	s.Items = append(s.Items, Item{from, object})
	if s.Done || len(g.Missing(id, names)) > 0 {
		return false, nil
	}
	s.Done = true
	return true, nil
}

// ToFollower is _broadcast_to_followers at a follower.
func (g *Gathers) ToFollower(id string, items []Item, again bool) (done bool, err error) {
	names := make([]string, len(items))
	for i, x := range items {
		names[i] = x.Name
	}
	if g.over(id, names) {
		return false, nil
	}
	s, err := g.gathering(id)
	if err != nil {
		return false, err
	}
	if s.Done {
		if again {
			return false, nil
		}
		return false, refuse("RuntimeError", "Termination signal sequence id %s got set twice.", id)
	}
	s.Items, s.Done = items, true
	return true, nil
}

// Fail ends an all-gather that cannot be completed, also one that this worker has not entered yet.
func (g *Gathers) Fail(id string, names []string, cause error) (done bool, err error) {
	if g.over(id, names) {
		return false, nil
	}
	s, err := g.gathering(id)
	if err != nil || s.Done {
		return false, err
	}
	s.Err, s.Done = cause, true
	return true, nil
}

// RefusedError is the answer to a message that the state of an all-gather forbids. A Python caller sees an exception of the class.
type RefusedError struct{ Class, Text string }

// Error returns class and text.
func (r *RefusedError) Error() string { return r.Class + ": " + r.Text }

func refuse(class, format string, args ...any) error {
	return &RefusedError{Class: class, Text: fmt.Sprintf(format, args...)}
}
