// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/observe"
)

// Kinds of the events that a join emits.
const (
	// EventJoin begins and ends with the join of this process.
	EventJoin observe.Kind = "rendezvous.join"
	// EventWait is emitted by the host while it waits: when a rank has joined and every few seconds. Its Detail says who
	// is missing.
	EventWait observe.Kind = "rendezvous.wait"
	// EventWarning is about a URL or a store that is most likely not what the user meant. Its Detail says why.
	EventWarning observe.Kind = "rendezvous.warning"
	// EventHost reports where this process serves the store.
	EventHost observe.Kind = "rendezvous.host"
)

const (
	pollEvery  = 10 * time.Millisecond  // as PyTorch's master does, where the store cannot notify
	lookEvery  = time.Second            // where it can, in case that it does not
	firstShow  = 200 * time.Millisecond // a world that gathers quickly shows nothing on the way
	firstWords = time.Second            // and says nothing
	moreWords  = 5 * time.Second
)

// board is where ranks publish that they have joined.
type board interface {
	// Joined returns PyTorch's counter of clients.
	Joined(ctx context.Context) (int64, error)
	// Known returns the ranks below size that published their identity.
	Known(ctx context.Context, size int) (map[cohort.Rank]identity, error)
	// Watch calls changed when the counter may have changed, until ctx ends. It returns early if the store cannot notify.
	Watch(ctx context.Context, changed func())
	// Show lets the store show that this process waits for who, until ctx ends.
	Show(ctx context.Context, who string)
}

// watcher notifies when to read the board again.
type watcher struct {
	changed chan struct{}
	cancel  context.CancelFunc
	joined  sync.WaitGroup
	ticker  *time.Ticker
	shown   context.CancelFunc // ends what Show shows
}

func newWatcher(ctx context.Context, b board) *watcher {
	w := &watcher{changed: make(chan struct{}, 1), ticker: time.NewTicker(lookEvery), shown: func() {}}
	ctx, w.cancel = context.WithCancel(ctx)
	w.joined.Go(func() {
		b.Watch(ctx, func() {
			select {
			case w.changed <- struct{}{}:
			default:
			}
		})
		if ctx.Err() == nil {
			w.ticker.Reset(pollEvery)
		}
	})
	return w
}

// show replaces what the store shows.
func (w *watcher) show(ctx context.Context, b board, who string) {
	w.shown()
	ctx, w.shown = context.WithCancel(ctx)
	w.joined.Go(func() { b.Show(ctx, who) })
}

func (w *watcher) end() {
	w.cancel()
	w.shown()
	w.joined.Wait()
	w.ticker.Stop()
}

// teller decides when a waiting host speaks. It is pure: time comes in as an argument.
type teller struct {
	started time.Time
	next    time.Time
	told    int64 // the count at the last words
}

func newTeller(now time.Time) *teller { return &teller{started: now, next: now.Add(firstWords)} }

// due reports whether to speak now: after the first second whenever the count moved, and else every few seconds.
func (t *teller) due(now time.Time, joined int64) bool {
	quiet := now.Before(t.next)
	if quiet && (joined == t.told || now.Sub(t.started) < firstWords) {
		return false
	}
	t.told, t.next = joined, now.Add(moreWords)
	return true
}

// awaitWorld returns when size clients have joined. While it waits it reports to hook and logger which ranks are missing; when ctx ends it
// says so in its error.
func awaitWorld(ctx context.Context, b board, size int, hook observe.Hook, logger *slog.Logger) error {
	start := time.Now()
	words := newTeller(start)
	early := time.After(firstShow)
	watch := newWatcher(ctx, b)
	defer watch.end()
	var seen roster
	shown := int64(-1)
	for {
		joined, err := b.Joined(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return lateError(ctx, b, roster{size: size, joined: seen.joined}, start)
			}
			return err
		}
		seen = roster{size: size, joined: joined}
		if seen.full() {
			return nil
		}
		if joined != shown && time.Since(start) >= firstShow {
			shown = joined
			if seen.known, err = b.Known(ctx, size); err == nil {
				watch.show(ctx, b, seen.awaited())
			}
		}
		if now := time.Now(); words.due(now, joined) {
			if seen.known, err = b.Known(ctx, size); err != nil && ctx.Err() == nil {
				return err
			}
			waited := now.Sub(start)
			hook.Emit(observe.Event{
				Kind: EventWait, Rank: 0, Dur: waited,
				Detail: fmt.Sprintf("%d/%d clients joined after %s, %s", joined, size, waited.Round(time.Second), seen.absent()),
			})
			logger.LogAttrs(ctx, slog.LevelInfo, "rank 0 waits for the other ranks", slog.Int64("joined", joined), slog.Int("size", size),
				slog.Duration("waited", waited.Round(time.Second)), slog.String("who", seen.absent()))
		}
		select {
		case <-ctx.Done():
			return lateError(ctx, b, seen, start)
		case <-watch.changed:
		case <-watch.ticker.C:
		case <-early:
			early = nil
		}
	}
}

// lateError is the error of a world that did not gather in time: PyTorch's words, then the names.
func lateError(ctx context.Context, b board, seen roster, start time.Time) error {
	// The caller's time is over, but the host's own store answers at once and the names are worth a moment.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if known, err := b.Known(last, seen.size); err == nil {
		seen.known = known
	}
	if joined, err := b.Joined(last); err == nil {
		seen.joined = joined
	}
	verb := "Timed out"
	code := cohort.DeadlineExceeded
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		verb, code = "Cancelled", cohort.Canceled
	}
	detail := fmt.Sprintf("%s after %d seconds waiting for clients. %d/%d clients joined. %s",
		verb, int(time.Since(start).Seconds()), seen.joined, seen.size, seen.absent())
	if names := seen.present(); names != "" {
		detail += "; here: " + names
	}
	detail += "; look at the logs of the missing processes, and check that they use the same address, port and world size"
	e := &cohort.Error{Op: opJoin, Code: code, Rank: cohort.NoRank, Detail: detail, Err: context.Cause(ctx)}
	if missing := seen.missing(); len(missing) == 1 {
		e.Rank = missing[0]
	}
	return e
}
