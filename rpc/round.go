// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/store"
)

// PyTorch counts in three places, per process and for ever: the worlds it has been in (the round: part of every key), the
// all-gathers of each set of names, and the barriers of all shutdowns. A world whose start or end failed, a dynamic world
// and a shutdown that had to wait for calls count differently, so no number can be had from another. A Go worker counts
// nothing: it looks at what is in the store, and asks.

const (
	// fewRounds is how many rounds are looked at where nothing says how many there may be, manyRounds how many once a
	// start has waited for a while.
	fewRounds, manyRounds = 16, 1024
	// lookAround is how often a start that waits looks for PyTorch workers in other rounds.
	lookAround = 100 * time.Millisecond
	// barriersAhead is how many barriers of a shutdown are looked for beyond those that the round explains.
	barriersAhead = 64
)

// enter makes k the round of this agent.
func (a *Agent) enter(k int) {
	a.round = k
	a.st = store.Prefix(roundPrefix(k), a.base)
}

// dynamicRound is the last round with a dynamic world that has workers. Without one it is that of the latest world, or the
// next if that was a static one and is known to be over.
func (a *Agent) dynamicRound(ctx context.Context) (int, error) {
	inhabited := -1
	for k := range fewRounds {
		members, err := readInfos(ctx, store.Prefix(roundPrefix(k), a.base))
		if err != nil {
			return 0, err
		}
		if len(members) > 0 {
			inhabited = k
		}
	}
	if inhabited >= 0 {
		return inhabited, nil
	}
	latest, err := a.latestRound(ctx)
	if err != nil {
		return 0, err
	}
	if over, err := a.base.Check(ctx, roundPrefix(latest)+"/"+keyOver); err != nil || !over {
		return latest, err
	}
	return latest + 1, nil
}

// latestRound is the last round with a world, or 0.
func (a *Agent) latestRound(ctx context.Context) (int, error) {
	latest := 0
	for k := range fewRounds {
		there, err := store.Prefix(roundPrefix(k), a.base).Check(ctx, keyStatic)
		if err != nil {
			return 0, err
		}
		if there {
			latest = k
		}
	}
	return latest, nil
}

// unusedRound is the first round that is not over.
func (a *Agent) unusedRound(ctx context.Context) (int, error) {
	for k := 0; ; k++ {
		used, err := a.usedUp(ctx, k)
		if err != nil || !used {
			return k, err
		}
	}
}

// usedUp reports whether a static world cannot start in a round any more: all ranks have come, it was a world of another
// size, or a dynamic one that everybody has left.
func (a *Agent) usedUp(ctx context.Context, k int) (bool, error) {
	st := store.Prefix(roundPrefix(k), a.base)
	names := make([]string, a.cfg.worldSize)
	for r := range names {
		names[r] = keyNames + strconv.Itoa(r)
	}
	if all, err := st.Check(ctx, names...); all || err != nil {
		return all, err
	}
	size, err := a.lookUp(ctx, st, keySize)
	if err != nil || size != "" {
		return size != strconv.Itoa(a.cfg.worldSize), err
	}
	mode, err := a.lookUp(ctx, st, keyStatic)
	if err != nil || mode != "false" {
		return false, err
	}
	members, err := readInfos(ctx, st)
	return len(members) == 0, err
}

// lookUp returns the value of a key, or "".
func (a *Agent) lookUp(ctx context.Context, st store.Store, key string) (string, error) {
	there, err := st.Check(ctx, key)
	if err != nil || !there {
		return "", err
	}
	value, err := st.Get(ctx, key)
	return string(value), err
}

// signOf reports whether a PyTorch rank has begun to start in a round: it publishes the address of its gloo group first.
func (a *Agent) signOf(ctx context.Context, k, rank int) (bool, error) {
	n := strconv.Itoa(rank)
	for _, key := range []string{"0/rank_" + n, "0/" + n} {
		if there, err := a.base.Check(ctx, roundPrefix(k)+"/"+key); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// later finds the last round from first on, of n, in which a PyTorch rank has begun to start, or -1.
func (a *Agent) later(ctx context.Context, first, n, rank int) (int, error) {
	found := -1
	for k := first; k < first+n; k++ {
		there, err := a.signOf(ctx, k, rank)
		if err != nil {
			return -1, err
		}
		if !there {
			continue
		}
		used, err := a.usedUp(ctx, k)
		if err != nil {
			return -1, err
		}
		if !used {
			found = k
		}
	}
	return found, nil
}

// comeTogether finds the round of a static world and waits until all ranks have shown what they are: a Go rank says so
// first of all. It reports whether there are PyTorch ranks; a world without them needs no gloo group.
//
// All Go ranks take the first round that is not used up. PyTorch ranks may be in another one, where the Go ranks follow.
func (a *Agent) comeTogether(ctx context.Context) (mixed bool, err error) {
	k := a.cfg.round
	if k < 0 {
		if k, err = a.unusedRound(ctx); err != nil {
			return false, err
		}
	}
	for {
		a.enter(k)
		if err = a.st.Set(ctx, keySize, []byte(strconv.Itoa(a.cfg.worldSize))); err != nil {
			return false, err
		}
		if err = a.st.Set(ctx, keyGoRanks+strconv.Itoa(a.cfg.rank), []byte(strconv.FormatUint(a.epoch, 16))); err != nil {
			return false, err
		}
		there, err := a.st.Check(ctx, keyStatic)
		if err == nil && there { // a dynamic world would let us wait for ranks that never come
			err = a.chooseMode(ctx, "true")
		}
		if err != nil {
			return false, err
		}
		var next int
		if mixed, next, err = a.anyPyTorch(ctx); err != nil || next < 0 {
			return mixed, err
		}
		a.cfg.logger.Debug("follow the PyTorch workers into their round", slog.String("worker", a.name), slog.Int("round", next))
		k = next
	}
}

// anyPyTorch waits until the ranks have shown what they are in this round, or a PyTorch rank has in another one, next.
func (a *Agent) anyPyTorch(ctx context.Context) (mixed bool, next int, err error) {
	var unknown []int
	for r := range a.cfg.worldSize {
		if r != a.cfg.rank {
			unknown = append(unknown, r)
		}
	}
	looked, looks := time.Now(), 0
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		left := unknown[:0]
		for _, r := range unknown {
			isGo, err := a.st.Check(ctx, keyGoRanks+strconv.Itoa(r))
			if err != nil {
				return false, -1, err
			}
			if isGo {
				continue
			}
			left = append(left, r)
			there, err := a.signOf(ctx, a.round, r)
			if err != nil {
				return false, -1, err
			}
			if there && a.cfg.round < 0 { // unless it is left over from a start that failed
				next, err := a.later(ctx, a.round+1, 4, r)
				return true, next, err
			}
			if there {
				return true, -1, nil
			}
		}
		if unknown = left; len(unknown) == 0 {
			return false, -1, nil
		}
		if a.cfg.round < 0 && time.Since(looked) >= lookAround {
			n := fewRounds
			if looks++; looks%10 == 0 {
				n = manyRounds
			}
			next, err := a.later(ctx, 0, n, unknown[looks%len(unknown)])
			if err != nil || next >= 0 && next != a.round {
				return false, next, err
			}
			looked = time.Now()
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			missing := []string{}
			for _, r := range unknown {
				missing = append(missing, strconv.Itoa(r))
			}
			e := dist.Ended("rpc: join", ctx)
			e.Detail = "these ranks did not come: " + strings.Join(missing, ", ")
			return false, -1, e
		}
	}
}

// Where PyTorch counts its all-gathers.
const (
	gatherCounts = "torch.distributed.rpc.api:_all_gather_sequence_id.get"
	gatherStates = "torch.distributed.rpc.api:_all_gather_sequence_id_to_states.__contains__"
)

// askForGathers asks a PyTorch worker which all-gather of these names is next. entered says that the worker is about to enter
// it, if it has not, and waits for us there. Otherwise it may enter it at any time.
func (a *Agent) askForGathers(ctx context.Context, names []string, entered bool) (int, error) {
	who := ""
	for _, name := range names {
		if name != a.name && !a.goWorker(ctx, name) && (who == "" || name < who) {
			who = name
		}
	}
	if a.round == 0 || who == "" { // Go workers begin with 0, and so do the first worlds of PyTorch's processes
		return 0, nil
	}
	all := strings.Join(slices.Sorted(slices.Values(names)), "")
	for last := -1; ; {
		count, err := Call[int](ctx, a, who, gatherCounts, all, 0)
		inside := false
		if err == nil && count > 0 {
			inside, err = Call[bool](ctx, a, who, gatherStates, all+strconv.Itoa(count-1))
		}
		if err != nil {
			return 0, err
		}
		next := count
		if inside {
			next = count - 1
		}
		if next == last && (inside || !entered) { // twice, since a worker that enters it counts a moment before
			return next, nil
		}
		last = next
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return 0, dist.FromContext("rpc: all_gather", ctx)
		}
	}
}

// firstBarrier finds out which barrier is the first of this world's end. PyTorch workers do not wait for others to enter it.
func (a *Agent) firstBarrier(ctx context.Context) (int, error) {
	if a.round == 0 || !a.mixed {
		return 1, nil
	}
	for pause, ahead := time.Millisecond, barriersAhead; ; pause, ahead = min(2*pause, 50*time.Millisecond), min(ahead+barriersAhead, 4096) {
		for n := range 3*a.round + 1 + ahead {
			n = (3*a.round+n)%(3*a.round+1+ahead) + 1 // the likely one first
			if there, err := a.st.Check(ctx, activeKey(n)); there || err != nil {
				return n, err
			}
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return 0, dist.FromContext("rpc: shutdown", ctx)
		}
	}
}
