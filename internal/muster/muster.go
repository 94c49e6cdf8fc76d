// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package muster

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
	"github.com/cohort-dist/cohort/store"
)

// ErrOver is the error of a step in a generation that was given up: the caller tries again, in the next one.
var ErrOver = errors.New("muster: this attempt was given up by a rank")

// The values of made, and the one of a place that nobody will take.
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
}

// Take takes the place of rank in the open generation, or opens one where it is free. words is what the other ranks get to
// read. more names what else ranks keep in the store below a generation, under "G/name/R": it is deleted with the generation.
func Take(ctx context.Context, s store.Store, prefix string, rank, size int, words []byte, more ...string) (*Place, error) {
	p := &Place{store: s, root: prefix, rank: rank, size: size, more: more}
	own := append([]byte(rand.Text()), words...)
	for {
		moment.At("muster.take")
		open, err := s.Add(ctx, p.root+"/gen", 0)
		if err != nil {
			return nil, err
		}
		if p.generation = open; open > 0 {
			before := *p
			before.generation--
			if err = before.finishClosing(ctx); err != nil {
				return nil, err
			}
		}
		moment.At("muster.place")
		got, err := s.CompareAndSet(ctx, p.Key(rank), nil, own)
		if err != nil {
			return nil, err
		}
		if bytes.Equal(got, own) {
			return p, nil
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
// [ErrOver] when the generation was given up.
func (p *Place) Words(ctx context.Context, ranks ...int) ([][]byte, error) {
	keys := make([]string, len(ranks))
	for i, r := range ranks {
		keys[i] = p.Key(r)
	}
	moment.At("muster.words")
	values, err := store.MultiGet(ctx, p.store, keys...)
	if err != nil {
		return nil, err
	}
	for i, v := range values {
		if bytes.Equal(v, over) {
			return nil, ErrOver
		}
		if len(v) < stampSize {
			return nil, dist.Newf("muster: read", dist.Protocol, "%q holds something else than what a rank says about itself", keys[i])
		}
		values[i] = v[stampSize:]
	}
	return values, nil
}

// Await waits until rank has taken its place or one of the other keys exists, and returns which: -1 for the place, else the
// index of the key. When the generation is given up it returns -1 too, and Words says so.
func (p *Place) Await(ctx context.Context, rank int, others ...string) (int, error) {
	moment.At("muster.await")
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
		if r := <-results; first.err != nil && r.err == nil {
			first = r
		}
	}
	return first.at, first.err
}

// Missing returns the ranks that have not taken their places, or had not when the generation was given up.
func (p *Place) Missing(ctx context.Context) ([]int, error) {
	var missing []int
	for r := range p.size {
		moment.At("muster.missing")
		has, err := p.store.Check(ctx, p.Key(r))
		if err != nil {
			return missing, err
		}
		if has {
			value, err := p.store.Get(ctx, p.Key(r))
			if err != nil {
				return missing, err
			}
			has = !bytes.Equal(value, over)
		}
		if !has {
			missing = append(missing, r)
		}
	}
	return missing, nil
}

// Connected says that this rank has connected to all others, and returns when all have said so. It returns [ErrOver] when
// the generation was given up instead.
func (p *Place) Connected(ctx context.Context) error {
	moment.At("muster.connected")
	n, err := p.store.Add(ctx, p.Prefix()+"/came", 1)
	if err != nil {
		return err
	}
	moment.At("muster.came")
	var verdict []byte
	if n >= int64(p.size) {
		if verdict, err = p.store.CompareAndSet(ctx, p.madeKey(), nil, made); err != nil {
			return err
		}
	} else if verdict, err = p.store.Get(ctx, p.madeKey()); err != nil {
		return err
	}
	if !bytes.Equal(verdict, made) {
		return ErrOver
	}
	if p.rank == 0 && p.generation > 0 {
		before := *p
		before.generation--
		before.forget(ctx)
	}
	return nil
}

// UntilOver waits until the generation is given up, and returns nil then. It returns an error when ctx ends before, and when
// the generation was made.
func (p *Place) UntilOver(ctx context.Context) error {
	moment.At("muster.until_over")
	verdict, err := p.store.Get(ctx, p.madeKey())
	if err == nil && !bytes.Equal(verdict, over) {
		return dist.New("muster: watch", dist.Closed, "the generation was made")
	}
	return err
}

// GiveUp says that this rank has given the generation up and closes it, in this order: whoever finds it closed can read that this rank
// lives. It does not wait longer than ctx and limit allow; a store that cannot be reached leaves
// the others to their own timeouts.
func (p *Place) GiveUp(ctx context.Context, limit time.Duration) {
	moment.At("muster.giveup")
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	_ = p.store.Set(ctx, p.waitsKey(p.rank), over)
	_ = p.close(ctx)
}

// Closed reports whether the generation is not open any more: a rank gave it up, or another process took its place. What the ranks
// see of each other then is no reason to fail. It is false when the store does not tell.
func (p *Place) Closed(ctx context.Context) bool {
	moment.At("muster.closed")
	open, err := p.store.Add(ctx, p.root+"/gen", 0)
	return err == nil && open != p.generation
}

// Waits says that this rank is alive and waits for others to connect, or to say that they have.
func (p *Place) Waits(ctx context.Context) error {
	moment.At("muster.waits")
	return p.store.Set(ctx, p.waitsKey(p.rank), made)
}

// suspectPause is how long Suspects lets the other ranks say that they have given up before it looks again, the first time.
const suspectPause = 10 * time.Millisecond

// Suspects returns the ranks that may be why a generation was given up: those that have not given it up themselves, though they could
// see that it is over. It looks again until at most one is left or ctx ends. If several are left then, those that said nothing at all
// are more suspect than those that said that they wait. known is false if the store did not tell in time.
func (p *Place) Suspects(ctx context.Context) (suspects []int, known bool) {
	var silent, waiting []int
	for pause := suspectPause; ; pause *= 2 { // all ranks ask at the same time
		s, w, err := p.notGivenUp(ctx)
		if err == nil {
			silent, waiting, known = s, w, true
		}
		if err != nil || ctx.Err() != nil || len(silent)+len(waiting) <= 1 {
			break
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	if len(silent) > 0 {
		return silent, known
	}
	return waiting, known
}

// notGivenUp returns the other ranks that have said nothing and those that have only said that they wait.
func (p *Place) notGivenUp(ctx context.Context) (silent, waiting []int, err error) {
	for r := range p.size {
		if r == p.rank {
			continue
		}
		moment.At("muster.suspects")
		said, err := p.store.Check(ctx, p.waitsKey(r))
		if err != nil {
			return nil, nil, err
		}
		if !said {
			silent = append(silent, r)
			continue
		}
		value, err := p.store.Get(ctx, p.waitsKey(r))
		if err != nil {
			return nil, nil, err
		}
		if !bytes.Equal(value, over) {
			waiting = append(waiting, r)
		}
	}
	return silent, waiting, nil
}

func (p *Place) waitsKey(rank int) string { return p.Prefix() + "/waits/" + strconv.Itoa(rank) }

// Leave says that this rank has closed the group. The last of those that took part, which may be fewer than the places,
// deletes the keys, unless a next generation was opened: then
// they are deleted there.
func (p *Place) Leave(ctx context.Context, ranks int) {
	moment.At("muster.leave")
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

// close opens the next generation and wakes whoever waits in this one.
func (p *Place) close(ctx context.Context) error {
	moment.At("muster.close")
	from, to := strconv.FormatInt(p.generation, 10), strconv.FormatInt(p.generation+1, 10)
	if _, err := p.store.CompareAndSet(ctx, p.root+"/gen", []byte(from), []byte(to)); err != nil {
		return err
	}
	return p.finishClosing(ctx)
}

// finishClosing fills what is free in a generation that is no longer open. Its last step is made, so a generation that has it
// needs no more.
func (p *Place) finishClosing(ctx context.Context) error {
	if has, err := p.store.Check(ctx, p.madeKey()); err != nil || has {
		return err
	}
	for r := range p.size {
		moment.At("muster.closing")
		if _, err := p.store.CompareAndSet(ctx, p.Key(r), nil, over); err != nil {
			return err
		}
	}
	_, err := p.store.CompareAndSet(ctx, p.madeKey(), nil, over)
	return err
}

// forget deletes the keys of a generation that nobody uses any more. Its verdict stays until the next generation is
// forgotten: it says that nothing is left to close.
func (p *Place) forget(ctx context.Context) {
	moment.At("muster.forget")
	before := *p
	before.generation--
	keys := []string{before.madeKey()}
	for _, name := range []string{"came", "left", "end"} {
		keys = append(keys, p.Prefix()+"/"+name)
	}
	for r := range p.size {
		keys = append(keys, p.Key(r), p.waitsKey(r))
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
