// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpcworld

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cohort-dist/cohort/dist"
	"github.com/cohort-dist/cohort/internal/moment"
)

const (
	// tokenBeat is how often a Go worker with the token says that it lives, tokenGone when it is taken for dead.
	tokenBeat, tokenGone = time.Second, 10 * time.Second
	// tidyTime bounds what has to be done after a join or leave that has failed, perhaps because its time was over.
	tidyTime = 5 * time.Second
)

// token is PyTorch's mutual exclusion of joining and leaving: the name of whoever has it is the value of one key, and it says
// "Done" under another when it has given it back. A PyTorch worker that dies with it stops all others for good. A Go worker
// says that it lives as long as it has it, so that other Go workers can take it over.
type token struct {
	w     *World
	value string
	stop  context.CancelFunc
	work  sync.WaitGroup
}

// takeToken waits for the token.
func (w *World) takeToken(ctx context.Context, what string) (*token, error) {
	t := &token{w: w, value: "Token_for_" + w.cfg.Name + "_" + what}
	if err := w.st.Set(ctx, keyBeat+t.value, []byte(strconv.FormatUint(w.cfg.Entry.Epoch, 16))); err != nil {
		return nil, err
	}
	expected := ""
	for again := 5 * time.Millisecond; ; again = min(2*again, 200*time.Millisecond) {
		moment.At("rpcworld.token.take")
		got, err := w.st.CompareAndSet(ctx, keyToken, []byte(expected), []byte(t.value))
		if err != nil {
			return nil, err
		}
		if string(got) == t.value {
			break
		}
		dead, err := w.waitForToken(ctx, string(got))
		if err != nil {
			e := dist.Wrap("rpc: "+what, dist.DeadlineExceeded, err)
			e.Detail = fmt.Sprintf("waiting for the worker that holds %q; if it died, no worker can join or leave any more", got)
			return nil, e
		}
		expected = ""
		if dead {
			expected = string(got)
			continue
		}
		// The holder says "Done" after it has given the token back, so another look soon succeeds. A worker that comes
		// again under its old name finds its old word, hence the pause.
		if !pause(ctx, again) {
			return nil, dist.FromContext("rpc: "+what, ctx)
		}
	}
	beats, stop := context.WithCancel(context.WithoutCancel(ctx))
	t.stop = stop
	t.work.Go(func() { t.beat(beats) })
	if expected != "" {
		if err := w.bury(ctx, expected); err != nil {
			_ = t.release(ctx)
			return nil, err
		}
	}
	return t, nil
}

// waitForToken waits until the holder is done, or is a Go worker that has died.
func (w *World) waitForToken(ctx context.Context, holder string) (dead bool, err error) {
	waits, cancel := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	done, gone := make(chan error, 1), make(chan struct{})
	work.Go(func() { done <- w.st.Wait(waits, holder) })
	work.Go(func() {
		last, since := "", time.Now()
		for pause(waits, tokenBeat) {
			now, failed := lookUp(waits, w.st, keyBeat+holder)
			switch {
			case failed != nil:
				return
			case now != last:
				last, since = now, time.Now()
			case now != "" && time.Since(since) >= tokenGone:
				close(gone)
				return
			}
		}
	})
	moment.At("rpcworld.token.wait")
	select {
	case err = <-done:
		return false, err
	case <-gone:
		return true, nil
	}
}

// bury takes a worker off the list that died while it had the token.
func (w *World) bury(ctx context.Context, held string) error {
	name := strings.TrimPrefix(held, "Token_for_")
	name = name[:max(strings.LastIndexByte(name, '_'), 0)]
	all, err := members(ctx, w.st)
	if err != nil {
		return err
	}
	return w.st.Set(ctx, keyInfos, formatInfos(without(all, name)))
}

func (t *token) beat(ctx context.Context) {
	for n := 1; pause(ctx, tokenBeat); n++ {
		_ = t.w.st.Set(ctx, keyBeat+t.value, []byte(strconv.FormatUint(t.w.cfg.Entry.Epoch, 16)+"."+strconv.Itoa(n)))
	}
}

// release gives the token back, also when ctx has ended: others wait for it.
func (t *token) release(ctx context.Context) error {
	t.stop()
	t.work.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
	defer cancel()
	moment.At("rpcworld.token.release")
	if _, err := t.w.st.CompareAndSet(ctx, keyToken, []byte(t.value), nil); err != nil {
		return err
	}
	return t.w.st.Set(ctx, t.value, []byte("Done"))
}
