// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
)

const (
	keyLooker = "cohort/looker" // the Go rank that looks for PyTorch ranks, on behalf of all
	// lookEvery is how often the looker looks for PyTorch ranks of this round after a while, lookAround how often for those
	// of others, and lookFar how many of these looks there are to one at rounds that are far off.
	lookEvery, lookAround, lookFar = 100 * time.Millisecond, 500 * time.Millisecond, 20
	// lookerBeat is how often the looker says that it lives, lookerGone when another rank takes over.
	lookerBeat, lookerGone = time.Second, 3 * time.Second
)

// ComeTogether finds the round of a static world and waits until all ranks have shown what they are: a Go rank says so
// first of all. A world without PyTorch ranks needs no gloo group; see [World.Mixed].
//
// All Go ranks take the first round that is not used up. PyTorch ranks may be in another one, where the Go ranks follow.
// They wait in the store, for each other's keys and for the word of the one among them that looks for PyTorch ranks.
func (w *World) ComeTogether(ctx context.Context) error {
	k := w.cfg.Round
	if k < 0 {
		var err error
		if k, err = w.unusedRound(ctx); err != nil {
			return err
		}
	}
	for {
		w.Enter(k)
		if err := w.show(ctx); err != nil {
			return err
		}
		next, err := w.waitForRanks(ctx)
		if err != nil || next < 0 {
			if err == nil {
				err = w.noteRound(ctx)
			}
			return err
		}
		w.cfg.Logger.Debug("follow the PyTorch workers into their round", slog.String("worker", w.cfg.Name), slog.Int("round", next))
		k = next
	}
}

// show says that this is a Go rank.
func (w *World) show(ctx context.Context) error {
	if err := w.st.Set(ctx, keySize, []byte(strconv.Itoa(w.cfg.Size))); err != nil {
		return err
	}
	if err := w.st.Set(ctx, keyGoRanks+strconv.Itoa(w.cfg.Rank), []byte(strconv.FormatUint(w.cfg.Entry.Epoch, 16))); err != nil {
		return err
	}
	there, err := w.st.Check(ctx, keyStatic)
	if err == nil && there { // a dynamic world would let us wait for ranks that never come
		err = w.chooseMode(ctx, "true")
	}
	return err
}

// waitForRanks waits until the ranks have shown what they are in this round, or a PyTorch rank has in another one, next,
// which is -1 otherwise.
func (w *World) waitForRanks(ctx context.Context) (next int, err error) {
	waits, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	allGo, mixed, failed := make(chan struct{}), make(chan int, 1), make(chan error, 3)
	work.Go(func() {
		if lost := w.st.Wait(waits, w.goRanks()...); lost != nil {
			failed <- lost
			return
		}
		close(allGo)
	})
	work.Go(func() {
		round, lost := w.st.Get(waits, keyMixed)
		k, bad := strconv.Atoi(string(round))
		if lost == nil && bad != nil {
			lost = dist.Newf("rpc: join", dist.Protocol, "the key %s has the value %q", keyMixed, round)
		}
		if lost != nil {
			failed <- lost
			return
		}
		mixed <- k
	})
	work.Go(func() {
		if lost := w.look(waits); lost != nil {
			failed <- lost
		}
	})
	moment.At("rpcworld.static.wait")
	select {
	case <-allGo:
		return -1, nil
	case k := <-mixed:
		if w.mixed = k == w.round; w.mixed {
			return -1, nil
		}
		return k, nil
	case err = <-failed:
	case <-ctx.Done():
		err = dist.FromContext(ctx, "rpc: join")
	}
	if code := dist.CodeOf(err); code == dist.DeadlineExceeded || code == dist.Canceled {
		err = w.missing(ctx, err)
	}
	return -1, err
}

// goRanks are the keys of all other ranks, if they are Go.
func (w *World) goRanks() []string {
	keys := make([]string, w.cfg.Size)
	for r := range keys {
		keys[r] = keyGoRanks + strconv.Itoa(r)
	}
	return keys
}

// missing says which ranks did not come.
func (w *World) missing(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	e := dist.Wrap("rpc: join", dist.DeadlineExceeded, err)
	ranks := []string{}
	for r := range w.cfg.Size {
		there, failed := w.st.Check(ctx, keyGoRanks+strconv.Itoa(r))
		if failed != nil {
			return e
		}
		if !there {
			ranks = append(ranks, strconv.Itoa(r))
		}
	}
	e.Detail = "these ranks did not come: " + strings.Join(ranks, ", ")
	return e
}

// look looks for PyTorch ranks, if no other Go rank does, and says in the store what it has found. PyTorch ranks wait for
// nothing that could be waited for with them, so one has to look again and again; but only one.
func (w *World) look(ctx context.Context) error {
	me := fmt.Sprintf("%d.%x.", w.cfg.Rank, w.cfg.Entry.Epoch)
	for held, beat := "", 0; ; {
		value := me + strconv.Itoa(beat)
		got, err := w.st.CompareAndSet(ctx, keyLooker, []byte(held), []byte(value))
		if err != nil {
			return err
		}
		if string(got) == value {
			return w.lookAround(ctx, value)
		}
		held = string(got) // if it is still the same then, its rank is gone
		if !pause(ctx, lookerGone) {
			return ctx.Err()
		}
	}
}

// lookAround is what the looker does. value is what it has said about itself.
func (w *World) lookAround(ctx context.Context, value string) error {
	me, _, _ := strings.Cut(value, ".")
	defer func() {
		tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = w.st.CompareAndSet(tidy, keyLooker, []byte(value), nil) // for a start that is tried again
	}()
	unknown := make([]int, 0, w.cfg.Size)
	for r := range w.cfg.Size {
		if r != w.cfg.Rank {
			unknown = append(unknown, r)
		}
	}
	said, looked := time.Now(), time.Now()
	for looks, beats, again := 0, 0, time.Millisecond; ; again = min(2*again, lookEvery) {
		left := unknown[:0]
		for _, r := range unknown {
			isGo, err := w.st.Check(ctx, keyGoRanks+strconv.Itoa(r))
			if err != nil {
				return err
			}
			if isGo {
				continue
			}
			left = append(left, r)
			there, err := w.signOf(ctx, w.round, r)
			if err != nil {
				return err
			}
			if !there {
				continue
			}
			next := -1
			if w.cfg.Round < 0 { // unless it is left over from a start that failed
				if next, err = w.later(ctx, w.round+1, 4, r); err != nil {
					return err
				}
			}
			return w.st.Set(ctx, keyMixed, []byte(strconv.Itoa(max(next, w.round))))
		}
		if unknown = left; len(unknown) == 0 {
			return nil
		}
		if w.cfg.Round < 0 && time.Since(looked) >= lookAround {
			n := fewRounds
			if looks++; looks%lookFar == 0 {
				n = manyRounds
			}
			next, err := w.later(ctx, 0, n, unknown[looks%len(unknown)])
			if err != nil {
				return err
			}
			if next >= 0 && next != w.round {
				return w.st.Set(ctx, keyMixed, []byte(strconv.Itoa(next)))
			}
			looked = time.Now()
		}
		if time.Since(said) >= lookerBeat {
			beats++
			next := me + "." + strconv.FormatUint(w.cfg.Entry.Epoch, 16) + "." + strconv.Itoa(beats)
			got, err := w.st.CompareAndSet(ctx, keyLooker, []byte(value), []byte(next))
			if err != nil {
				return err
			}
			if string(got) != next { // another rank has taken over
				return nil
			}
			value, said = next, time.Now()
		}
		if !pause(ctx, again) {
			return ctx.Err()
		}
	}
}

// Names publishes the own name and address, and waits for the names of all ranks.
func (w *World) Names(ctx context.Context, addr string) ([]string, error) {
	if err := w.chooseMode(ctx, "true"); err != nil {
		return nil, err
	}
	rank := w.cfg.Rank
	if err := w.st.Set(ctx, keyNames+strconv.Itoa(rank), []byte(w.cfg.Name)); err != nil {
		return nil, err
	}
	names := make([]string, w.cfg.Size)
	seen := map[string]int{w.cfg.Name: rank}
	names[rank] = w.cfg.Name
	for id := range names {
		if id == rank {
			continue
		}
		raw, err := w.st.Get(ctx, keyNames+strconv.Itoa(id))
		if err != nil {
			return nil, fmt.Errorf("wait for the name of rank %d: %w", id, err)
		}
		names[id] = string(raw)
		if other, twice := seen[names[id]]; twice {
			return nil, dist.Newf("rpc: join", dist.AlreadyExists, "ranks %d and %d are both called %q", other, id, names[id])
		}
		seen[names[id]] = id
	}
	return names, w.announce(ctx, addr)
}
