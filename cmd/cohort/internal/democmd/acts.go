// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package democmd

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/world"
)

// stage is what the acts of one worker share.
type stage struct {
	world *world.World
}

// act is one scene of the demonstration. Every worker plays all acts in order; play returns what happened in one line.
// A new capability becomes part of the demonstration by a line here.
type act struct {
	name string
	play func(ctx context.Context, s *stage) (string, error)
}

func acts() []act {
	return []act{
		{"meet", meet},
		{"exchange", exchange},
		{"count", count},
		{"barrier", barrier},
		{"sum", sum},
		{"train", train},
		{"pass", pass},
	}
}

func actNames() []string {
	var names []string
	for _, a := range acts() {
		names = append(names, a.name)
	}
	return names
}

// meet joins the world that the environment describes.
func meet(ctx context.Context, s *stage) (string, error) {
	var err error
	if s.world, err = world.Join(ctx, "env://"); err != nil {
		return "", err
	}
	return fmt.Sprintf("joined as rank %d of %d", s.world.Rank(), s.world.Size()), nil
}

// exchange publishes a greeting and reads everybody's.
func exchange(ctx context.Context, s *stage) (string, error) {
	st := s.world.Store()
	if err := st.Set(ctx, greetingKey(int(s.world.Rank())), []byte(strconv.Itoa(os.Getpid()))); err != nil {
		return "", err
	}
	keys := make([]string, s.world.Size())
	for rank := range keys {
		keys[rank] = greetingKey(rank)
	}
	values, err := store.MultiGet(ctx, st, keys...)
	if err != nil {
		return "", err
	}
	pids := make([]string, len(values))
	for rank, value := range values {
		pids[rank] = string(value)
	}
	return "read the process ids of all: " + strings.Join(pids, " "), nil
}

func greetingKey(rank int) string { return fmt.Sprintf("demo/pid/%d", rank) }

// count adds to one counter from all sides.
func count(ctx context.Context, s *stage) (string, error) {
	const rounds = 250
	var last int64
	for range rounds {
		var err error
		if last, err = s.world.Store().Add(ctx, "demo/counter", 1); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("added 1 to a shared counter %d times, last saw %d", rounds, last), nil
}

// barrier lets the ranks come one after the other and go together.
func barrier(ctx context.Context, s *stage) (string, error) {
	late := time.NewTimer(time.Duration(s.world.Rank()) * 300 * time.Millisecond)
	defer late.Stop()
	select {
	case <-late.C:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	st, start := s.world.Store(), time.Now()
	arrived, err := st.Add(ctx, "demo/barrier/arrived", 1)
	if err != nil {
		return "", err
	}
	if int(arrived) == s.world.Size() {
		if total, err := st.Add(ctx, "demo/counter", 0); err != nil {
			return "", err
		} else if want := int64(250 * s.world.Size()); total != want {
			return "", fmt.Errorf("the shared counter is %d, want %d", total, want)
		}
		if err := st.Set(ctx, "demo/barrier/open", nil); err != nil {
			return "", err
		}
	}
	if err := st.Wait(ctx, "demo/barrier/open"); err != nil {
		return "", err
	}
	return fmt.Sprintf("passed the barrier as number %d after waiting %d ms", arrived, time.Since(start).Milliseconds()), nil
}
