// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package assemble

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/store"
)

// ErrAttemptAbandoned is the error of a step in a generation that was given up: the caller tries again, in the next one.
var ErrAttemptAbandoned = errors.New("group: a rank abandoned this attempt")

// The values of made, and the one of a place that no rank will take.
var (
	made = []byte("yes")
	over = []byte("over")
)

// stampSize is the length of the random word in front of what a rank says about itself: two processes that say the same
// must not be taken for one.
const stampSize = 26

// Place is the place of one rank in one generation.
type Place struct {
	store      store.Store
	root       string // prefix of all generations
	generation int64
	rank, size int
	more       []string

	givingUp sync.Once
	unsaid   error // why the store does not know that this rank has given up
}

// in is the same rank's place in a generation.
func (p *Place) in(generation int64) *Place {
	return &Place{store: p.store, root: p.root, generation: generation, rank: p.rank, size: p.size, more: p.more}
}

// before is the same rank's place in the generation before.
func (p *Place) before() *Place { return p.in(p.generation - 1) }

// Take takes the place of rank in the open generation, or opens one where it is free. words is what the other ranks get to
// read. more names what else ranks keep in the store below a generation, under "G/name/R": it is deleted with the generation.
func Take(ctx context.Context, s store.Store, prefix string, rank, size int, words []byte, more ...string) (*Place, error) {
	return TakeUnless(ctx, s, prefix, rank, size, words, func(*Place, []byte) error { return nil }, more...)
}

// TakeUnless is [Take] that calls taken with the words of another call that has the place in the open generation, before it closes that. It
// returns an error of taken at once.
func TakeUnless(ctx context.Context, s store.Store, prefix string, rank, size int, words []byte,
	taken func(at *Place, words []byte) error, more ...string,
) (*Place, error) {
	p := &Place{store: s, root: prefix, rank: rank, size: size, more: more}
	own := append([]byte(rand.Text()), words...)
	for {
		failpoint.At("assemble.take")
		open, err := s.Add(ctx, p.root+"/gen", 0)
		if err != nil {
			return nil, err
		}
		if p.generation = open; open > 0 {
			if err = p.before().finishClosing(ctx); err != nil {
				return nil, err
			}
		}
		failpoint.At("assemble.place")
		got, err := s.CompareAndSet(ctx, p.Key(rank), nil, own)
		if err != nil {
			return nil, err
		}
		if bytes.Equal(got, own) {
			return p, nil
		}
		if len(got) >= stampSize {
			if err := taken(p, got[stampSize:]); err != nil {
				return nil, err
			}
		}
		if err := p.close(ctx); err != nil {
			return nil, err
		}
	}
}

// Generation is the number of the attempt, from 0.
func (p *Place) Generation() int64 { return p.generation }

// Prefix is the prefix of the keys of this generation.
func (p *Place) Prefix() string { return p.root + "/" + strconv.FormatInt(p.generation, 10) }

// Key is the key of a rank's place.
func (p *Place) Key(rank int) string { return p.Prefix() + "/rank/" + strconv.Itoa(rank) }

// EndKey is where the group notes why it ended.
func (p *Place) EndKey() string { return p.Prefix() + "/end" }

// Words returns what the given ranks said about themselves. All of them must have taken their places: it waits. It returns
// [ErrAttemptAbandoned] when the generation was given up.
func (p *Place) Words(ctx context.Context, ranks ...int) ([][]byte, error) {
	keys := make([]string, len(ranks))
	for i, r := range ranks {
		keys[i] = p.Key(r)
	}
	failpoint.At("assemble.words")
	values, err := store.MultiGet(ctx, p.store, keys...)
	if err != nil {
		return nil, err
	}
	for i, v := range values {
		if bytes.Equal(v, over) {
			return nil, ErrAttemptAbandoned
		}
		if len(v) < stampSize {
			return nil, cohort.Newf("group: read the ranks", cohort.Protocol, "the key %q does not hold the entry of a rank", keys[i])
		}
		values[i] = v[stampSize:]
	}
	return values, nil
}

// Await waits until rank has taken its place or one of the other keys exists, and returns which: -1 for the place, else the
// index of the key. When the generation is given up it returns -1 too, and Words says so.
func (p *Place) Await(ctx context.Context, rank int, others ...string) (int, error) {
	failpoint.At("assemble.await")
	if len(others) == 0 {
		return -1, p.store.Wait(ctx, p.Key(rank))
	}
	ctx, cancel := context.WithCancel(ctx)
	type found struct {
		at  int
		err error
	}
	results := make(chan found, len(others)+1)
	wait := func(at int, key string) { results <- found{at, p.store.Wait(ctx, key)} }
	go wait(-1, p.Key(rank))
	for i, key := range others {
		go wait(i, key)
	}
	first := <-results
	cancel()
	for range others { // all have ended when this returns
		failpoint.At("assemble.await.rest")
		if r := <-results; first.err != nil && r.err == nil {
			first = r
		}
	}
	return first.at, first.err
}

// Missing returns the ranks that have not taken their places, or had not when the generation was given up.
func (p *Place) Missing(ctx context.Context) ([]int, error) {
	free, err := p.free(ctx, 0, p.size)
	if err != nil {
		return nil, err
	}
	var taken []int
	var keys []string
	for r := range p.size {
		if _, is := slices.BinarySearch(free, r); !is {
			taken, keys = append(taken, r), append(keys, p.Key(r))
		}
	}
	if len(keys) == 0 {
		return free, nil
	}
	failpoint.At("assemble.missing")
	values, err := store.MultiGet(ctx, p.store, keys...)
	for i, v := range values {
		if bytes.Equal(v, over) {
			free = append(free, taken[i])
		}
	}
	slices.Sort(free)
	return free, err
}

// free returns the ranks in [from, to) whose places hold nothing. Stores only say whether all of some keys are there: so the ranks are
// halved until it is known which are not, which takes few questions when few are missing.
func (p *Place) free(ctx context.Context, from, to int) ([]int, error) {
	keys := make([]string, 0, to-from)
	for r := from; r < to; r++ {
		keys = append(keys, p.Key(r))
	}
	failpoint.At("assemble.free")
	has, err := p.store.Check(ctx, keys...)
	if err != nil || has {
		return nil, err
	}
	if to-from == 1 {
		return []int{from}, nil
	}
	middle := (from + to) / 2
	low, err := p.free(ctx, from, middle)
	if err != nil {
		return nil, err
	}
	high, err := p.free(ctx, middle, to)
	return append(low, high...), err
}

// Connected says that this rank has connected to all others, and returns when all have said so. It returns [ErrAttemptAbandoned] when
// the generation was given up instead.
func (p *Place) Connected(ctx context.Context) error {
	failpoint.At("assemble.connected")
	n, err := p.store.Add(ctx, p.Prefix()+"/came", 1)
	if err != nil {
		return err
	}
	failpoint.At("assemble.came")
	var verdict []byte
	if n >= int64(p.size) {
		if verdict, err = p.store.CompareAndSet(ctx, p.madeKey(), nil, made); err != nil {
			return err
		}
	} else if verdict, err = p.store.Get(ctx, p.madeKey()); err != nil {
		return err
	}
	if !bytes.Equal(verdict, made) {
		return ErrAttemptAbandoned
	}
	if p.rank == 0 {
		p.forgetOlder(ctx)
	}
	return nil
}

// UntilOver waits until the generation is given up, and returns nil then. It returns an error when ctx ends before, and when
// the generation was made.
func (p *Place) UntilOver(ctx context.Context) error {
	failpoint.At("assemble.until_over")
	verdict, err := p.store.Get(ctx, p.madeKey())
	if err == nil && !bytes.Equal(verdict, over) {
		return cohort.New("group: watch the ranks", cohort.Closed, "all ranks have connected")
	}
	return err
}

// giveUpLimit bounds how long a rank takes to say that it has given up, or connected.
const giveUpLimit = time.Second

// GiveUp says that this rank has given the generation up and closes it, in this order: a rank that finds it closed can read that this rank
// lives. It does so once, however often it is called, and does not wait longer than a second: a store that cannot be reached leaves the
// others to their own timeouts. The error is that of the store.
func (p *Place) GiveUp(ctx context.Context) error {
	failpoint.At("assemble.giveup")
	p.givingUp.Do(func() {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpLimit)
		defer cancel()
		if p.unsaid = p.note(limited, p.gaveUpKey(), p.rank); p.unsaid == nil {
			p.unsaid = p.close(limited)
		}
	})
	return p.unsaid
}

// Refuse closes the open generation for a reason that makes it useless to open another: it writes why where the group notes why it ended,
// unless a reason stands there. The rank may have no place in that generation. A rank that finds it closed can read why, and so can one
// that had a place in a generation before, with [Place.Refused]. It may be called while others use the place.
func (p *Place) Refuse(ctx context.Context, why []byte) error {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpLimit)
	defer cancel()
	open, err := p.store.Add(limited, p.root+"/gen", 0)
	at := p
	for written := int64(-1); err == nil && written != open; { // until it was written while the generation was open
		if written = open; open != p.generation {
			at = p.in(open)
		}
		failpoint.At("assemble.refuse")
		if _, err = p.store.CompareAndSet(limited, at.EndKey(), nil, why); err == nil {
			open, err = p.store.Add(limited, p.root+"/gen", 0)
		}
	}
	if err != nil {
		return err
	}
	return at.GiveUp(ctx)
}

// maxRefused bounds how many generations Refused looks at.
const maxRefused = 16

// Refused returns the reasons that were written in this generation and those since another, the oldest first.
func (p *Place) Refused(ctx context.Context, since int64) (why [][]byte, err error) {
	for g := max(since, p.generation-maxRefused); g <= p.generation; g++ {
		at := &Place{root: p.root, generation: g}
		failpoint.At("assemble.refused")
		if has, err := p.store.Check(ctx, at.EndKey()); err != nil || !has {
			if err != nil {
				return nil, err
			}
			continue
		}
		words, err := p.store.Get(ctx, at.EndKey())
		if err != nil {
			return nil, err
		}
		why = append(why, words)
	}
	return why, nil
}

// Decline gives the first generation up for a rank that has not taken its place and will not. It is for what can be made in that generation
// only: in others the next process that takes the place is waited for.
func Decline(ctx context.Context, s store.Store, prefix string, rank, size int) error {
	p := &Place{store: s, root: prefix, rank: rank, size: size}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveUpLimit)
	defer cancel()
	failpoint.At("assemble.decline")
	if open, err := s.Add(limited, p.root+"/gen", 0); err != nil || open > 0 {
		return err
	}
	return p.GiveUp(ctx)
}

// Closed reports whether the generation is not open any more: a rank gave it up, or another process took its place. What the ranks
// see of each other then does not make it fail. It is false when the store does not report.
func (p *Place) Closed(ctx context.Context) bool {
	failpoint.At("assemble.closed")
	open, err := p.store.Add(ctx, p.root+"/gen", 0)
	return err == nil && open != p.generation
}

// How long Suspects waits: until at most one rank is left that has not given up, and then for that one, which may be about to.
const (
	suspectWait = time.Second
	lastWait    = 200 * time.Millisecond
)

// Suspects returns the ranks that may be why a generation was given up: those that have not given it up themselves, though they could
// see that it is over. This rank must have. known is false if the store does not report, and if the generation was made after all: no rank
// gives it up then, and none is suspect.
func (p *Place) Suspects(ctx context.Context) (suspects []int, known bool) {
	if p.unsaid != nil {
		return nil, false
	}
	failpoint.At("assemble.suspects.verdict")
	if verdict, err := p.store.Get(ctx, p.madeKey()); err != nil || !bytes.Equal(verdict, over) {
		return nil, false
	}
	left, err := p.notGivenUp(ctx)
	if err == nil && len(left) > 1 {
		left, err = p.untilLeft(ctx, 1, suspectWait)
	}
	if err == nil && len(left) == 1 {
		left, err = p.untilLeft(ctx, 0, lastWait)
	}
	return left, err == nil
}

// untilLeft waits until at most so many ranks have not given up, but not longer than limit, and returns them.
func (p *Place) untilLeft(ctx context.Context, most int, limit time.Duration) ([]int, error) {
	failpoint.At("assemble.suspects")
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	_ = p.store.Wait(limited, p.leftKey(most))
	return p.notGivenUp(ctx)
}

// notGivenUp returns the ranks that have not given up, and says so if it is at most one.
func (p *Place) notGivenUp(ctx context.Context) ([]int, error) {
	failpoint.At("assemble.gone")
	said, err := p.store.Get(ctx, p.gaveUpKey())
	if err != nil {
		return nil, err
	}
	gone := p.parse(said)
	var left []int
	for r := range p.size {
		if _, is := slices.BinarySearch(gone, r); !is {
			left = append(left, r)
		}
	}
	for most := len(left); most <= 1 && err == nil; most++ {
		err = p.store.Set(ctx, p.leftKey(most), made)
	}
	return left, err
}

func (p *Place) gaveUpKey() string { return p.Prefix() + "/gone" }

// leftKey exists once at most so many ranks, 0 or 1, have not given up.
func (p *Place) leftKey(most int) string { return p.gaveUpKey() + "/" + strconv.Itoa(most) }

func (p *Place) quitKey() string { return p.Prefix() + "/quit" }

// AnnounceQuit says that this rank has closed the group and comes to no group that follows. Call it before [Place.Leave].
func (p *Place) AnnounceQuit(ctx context.Context) {
	failpoint.At("assemble.quit")
	_ = p.note(ctx, p.quitKey(), p.rank)
}

// Quits returns the ranks that have said so.
func (p *Place) Quits(ctx context.Context) ([]int, error) { return p.ranksUnder(ctx, p.quitKey()) }

// Leave says that this rank has closed the group. The last of those that took part, which may be fewer than the places,
// deletes the keys, unless a next generation was opened: then
// they are deleted there.
func (p *Place) Leave(ctx context.Context, ranks int) {
	failpoint.At("assemble.leave")
	if open, err := p.store.Add(ctx, p.root+"/gen", 0); err != nil || open != p.generation {
		return
	}
	if n, err := p.store.Add(ctx, p.Prefix()+"/left", 1); err != nil || n < int64(ranks) {
		return
	}
	// A next call must not find free places in a generation that was in use.
	if err := p.close(ctx); err == nil {
		p.forget(ctx)
	}
}

func (p *Place) madeKey() string { return p.Prefix() + "/made" }

// close opens the next generation and wakes the ranks that wait in this one.
func (p *Place) close(ctx context.Context) error {
	failpoint.At("assemble.close")
	from, to := strconv.FormatInt(p.generation, 10), strconv.FormatInt(p.generation+1, 10)
	if _, err := p.store.CompareAndSet(ctx, p.root+"/gen", []byte(from), []byte(to)); err != nil {
		return err
	}
	return p.finishClosing(ctx)
}

// finishClosing fills what is free in a generation that is closed. Its last step is made, so a generation that has it
// needs no more.
func (p *Place) finishClosing(ctx context.Context) error {
	if has, err := p.store.Check(ctx, p.madeKey()); err != nil || has {
		return err
	}
	free, err := p.free(ctx, 0, p.size)
	if err != nil {
		return err
	}
	for _, r := range free {
		failpoint.At("assemble.closing")
		if _, err = p.store.CompareAndSet(ctx, p.Key(r), nil, over); err != nil {
			return err
		}
	}
	_, err = p.store.CompareAndSet(ctx, p.madeKey(), nil, over)
	return err
}

// forgetOlder deletes the keys of the generation before, and of those before it that were given up one after the other: all their places
// are filled until they are forgotten.
func (p *Place) forgetOlder(ctx context.Context) {
	for older := p.before(); older.generation >= 0; older = older.before() {
		failpoint.At("assemble.forget.older")
		if filled, err := p.store.Check(ctx, older.Key(p.size-1)); err != nil || !filled {
			return
		}
		older.forget(ctx)
	}
}

// forget deletes the keys of a generation that no rank uses any more. Its verdict stays until the next generation is
// forgotten: it says that nothing is left to close.
func (p *Place) forget(ctx context.Context) {
	failpoint.At("assemble.forget")
	keys := []string{p.before().madeKey(), p.gaveUpKey(), p.leftKey(0), p.leftKey(1), p.upKey(), p.deadKey(), p.quitKey()}
	for _, name := range []string{"came", "left", "end"} {
		keys = append(keys, p.Prefix()+"/"+name)
	}
	for r := range p.size {
		keys = append(keys, p.Key(r))
		for _, name := range p.more {
			keys = append(keys, p.Prefix()+"/"+name+"/"+strconv.Itoa(r))
		}
	}
	for _, key := range keys {
		if _, err := p.store.Delete(ctx, key); err != nil {
			return
		}
	}
}
