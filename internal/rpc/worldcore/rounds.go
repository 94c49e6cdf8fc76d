// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package worldcore

import (
	"slices"
	"strconv"

	"github.com/cohort-dist/cohort"
)

// PyTorch counts in three places, per process and for ever: the worlds it has been in (the round: part of every key), the
// all-gathers of each set of names, and the barriers of all shutdowns. A world whose start or end failed, a dynamic world
// and a shutdown that had to wait for calls count differently, so no number can be had from another. A Go worker counts
// nothing: it looks at what is in the store, and asks.

// fewRounds is how many rounds without a world are looked at before it is taken that there are no more.
const fewRounds = 16

// latestRound finds the last round with a world, or 0.
func (c *course) latestRound(then func(k int)) {
	c.hint(func(k int) {
		k = max(k, 0)
		c.nextRound(k, k, then)
	})
}

// hint reads the latest round that was noted, or -1.
func (c *course) hint(then func(k int)) {
	c.read(NoRound, keyRounds, func(text string) {
		k, err := strconv.Atoi(text)
		if err != nil {
			k = -1
		}
		then(k)
	})
}

// nextRound is the state in which the latest world up to round k is known.
func (c *course) nextRound(k, latest int, then func(k int)) {
	if k > latest+fewRounds {
		then(latest)
		return
	}
	c.must(Op{Kind: OpCheck, Round: k, Keys: []string{KeyStatic}}, func(ev Event) {
		if ev.OK {
			latest = k
		}
		c.nextRound(k+1, latest, then)
	})
}

// dynamicRound finds the last round with a dynamic world that has workers. Without one it is that of the latest world, or the
// next if that was a static one and is known to be over.
func (c *course) dynamicRound(then func(k int)) {
	c.latestRound(func(latest int) {
		down := make([]int, 0, latest+1)
		for k := latest; k >= 0; k-- {
			down = append(down, k)
		}
		inOrder(down, func(k int, next func()) {
			c.members(k, func(all []Worker) {
				if len(all) > 0 {
					then(k)
					return
				}
				next()
			})
		}, func() {
			c.must(Op{Kind: OpCheck, Round: latest, Keys: []string{KeyOver}}, func(ev Event) {
				if ev.OK {
					latest++
				}
				then(latest)
			})
		})
	})
}

// asker does an operation that is expected to succeed, as [course.must] does.
type asker func(op Op, then func(Event))

// usedUp finds out whether a worker cannot start in a static world of a round any more: a Go worker of its rank has been in it before; a
// rank has said there that it starts again elsewhere (keyRestart); all ranks had come together in it; it was a world of another size; or it
// was a dynamic one that everybody has left. A Go rank publishes its name when all have come together, so a rank that finds its own is not
// that rank's first start there, and the others do not wait for it.
func usedUp(ask asker, me Self, k int, then func(used bool)) {
	ask(Op{Kind: OpRead, Round: k, Key: KeyStatic}, func(ev Event) {
		if ev.Text == "false" {
			ask(Op{Kind: OpRead, Round: k, Key: KeyInfos}, func(ev Event) {
				all, err := ParseInfos(ev.Text)
				then(err == nil && len(all) == 0)
			})
			return
		}
		names := make([]string, me.Size)
		for r := range names {
			names[r] = KeyNames + strconv.Itoa(r)
		}
		inOrder([][]string{{names[me.Rank], RankKey(me.Rank)}, {keyRestart}, names}, func(keys []string, next func()) {
			ask(Op{Kind: OpCheck, Round: k, Keys: keys}, func(ev Event) {
				if ev.OK {
					then(true)
					return
				}
				next()
			})
		}, func() {
			ask(Op{Kind: OpRead, Round: k, Key: keySize}, func(ev Event) { then(ev.Text != "" && ev.Text != strconv.Itoa(me.Size)) })
		})
	})
}

// noteRound lets those who come later look for the latest round where it is. It is a hint: it may be missing or too low.
func (c *course) noteRound(then func()) {
	c.hint(func(latest int) {
		if latest >= c.round {
			then()
			return
		}
		c.must(Op{Kind: OpSet, Round: NoRound, Key: keyRounds, Text: strconv.Itoa(c.round)}, func(Event) { then() })
	})
}

// members reads the members of a dynamic world.
func (c *course) members(round int, then func([]Worker)) {
	c.read(round, KeyInfos, func(raw string) {
		all, err := ParseInfos(raw)
		if err != nil {
			c.failed(err)
			return
		}
		then(all)
	})
}

// chooseMode agrees with the other workers on static ("true") or dynamic ("false").
func (c *course) chooseMode(mode string, then func()) {
	c.swap(KeyStatic, "", mode, func(got string) {
		if got != mode {
			c.failed(cohort.Newf("rpc: join", cohort.Mismatch,
				"this world was started by workers with%s a world size: all must give one or none (RPC group mixes static and "+
					"dynamic members)",
				map[string]string{"true": "", "false": "out"}[got]))
			return
		}
		then()
	})
}

// announce publishes this worker's address. The entry comes first: an address without one is that of a worker which speaks
// PyTorch's transport only.
func (c *course) announce(me Self, addr string, then func()) {
	address := func() { c.set(KeyAddrs+me.Name, "uv://"+addr, then) }
	c.set(KeyGo+me.Name, "", func() {
		if me.Entry == "" {
			address()
			return
		}
		c.set(KeyCohort+me.Name, me.Entry, address)
	})
}

// withdraw takes back what Go workers have announced: a PyTorch worker may come under the name of one of them.
func (c *course) withdraw(names []string, then func()) {
	inOrder(names, func(name string, next func()) {
		c.remove(KeyCohort+name, func() { c.remove(KeyGo+name, next) })
	}, then)
}

// know makes other workers known here, so that they can be called.
func (c *course) know(me Self, others []Worker, then func()) {
	inOrder(others, func(x Worker, next func()) {
		c.must(Op{Kind: OpGet, Round: c.round, Key: KeyAddrs + x.Name}, func(ev Event) {
			known := func(entry string) {
				c.must(Op{Kind: OpKnow, Worker: x.Name, N: x.ID, Text: ev.Text, Key: entry}, func(Event) { next() })
			}
			if me.Entry == "" {
				known("")
				return
			}
			c.read(c.round, KeyCohort+x.Name, known)
		})
	}, then)
}

// without returns the workers that are not named.
func without(all []Worker, names ...string) []Worker {
	return slices.DeleteFunc(slices.Clone(all), func(m Worker) bool { return slices.Contains(names, m.Name) })
}

// Latest finds the last round of a store that has a world.
type Latest struct {
	course
	found int
}

// NewLatest returns the machine.
func NewLatest() *Latest {
	l := &Latest{}
	l.begin(func() {
		l.latestRound(func(k int) {
			l.found = k
			l.end(nil)
		})
	})
	return l
}

// Round is what it has found.
func (l *Latest) Round() int { return l.found }
