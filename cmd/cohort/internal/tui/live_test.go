// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tui

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/termtest"
)

// TestLive: whatever is printed and drawn in whatever order, while the terminal changes its size, the output stands there
// once and in order, the lines at the bottom below it, and the cursor below those.
func TestLive(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		screen := termtest.New(20+rnd.IntN(80), 40+rnd.IntN(30)) // lines that are broken at the top of a low one are out of reach
		live := NewLive(screen, screen.Size)
		var printed, shown []string
		unfinished := ""
		for step := range 60 {
			switch rnd.IntN(6) {
			case 0, 1: // some whole lines, and perhaps a piece
				var text strings.Builder
				for range rnd.IntN(4) {
					text.WriteString(strings.Repeat(string(rune('a'+rnd.IntN(26))), 1+rnd.IntN(150)) + "\n")
				}
				if rnd.IntN(4) == 0 {
					text.WriteString("piece")
				}
				_, _ = live.Write([]byte(text.String()))
				whole := strings.Split(unfinished+text.String(), "\n")
				unfinished = whole[len(whole)-1]
				printed = append(printed, whole[:len(whole)-1]...)
			case 2, 3, 4:
				n := rnd.IntN(6)
				live.Set(func(width, height int) []string {
					shown = nil
					for i := range min(n, height) {
						shown = append(shown, Cut(fmt.Sprintf("-- line %d of step %d 検査 %s", i, step, strings.Repeat("x", 40)), width-1))
					}
					return shown
				})
			case 5:
				if rnd.IntN(3) == 0 {
					screen.Resize(12+rnd.IntN(100), 40+rnd.IntN(30))
				} else {
					live.Set(func(int, int) []string { shown = nil; return nil })
				}
			}
			want := slices.Concat(printed, shown)
			if diff := cmp.Diff(want, screen.Lines(true), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("seed %d, step %d (-want +got):\n%s", seed, step, diff)
			}
			if column, free := screen.Cursor(); column != 0 || !free {
				t.Fatalf("seed %d, step %d: the cursor is in column %d, free %v", seed, step, column, free)
			}
		}
		live.Close()
		if unfinished != "" {
			printed = append(printed, unfinished)
		}
		if diff := cmp.Diff(printed, screen.Lines(true), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d, after the end (-want +got):\n%s", seed, diff)
		}
		if unknown := screen.Unknown(); len(unknown) > 0 {
			t.Fatalf("seed %d: sequences %v", seed, unknown)
		}
		_, _ = live.Write([]byte("after\n"))
		live.Set(func(int, int) []string { return []string{"no"} })
		if lines := screen.Lines(true); lines[len(lines)-1] != "after" {
			t.Errorf("after Close: %q", lines[len(lines)-1])
		}
	}
}

// TestLiveSmall: a terminal that is too small shows output alone, and a frame that has not changed is not sent again.
func TestLiveSmall(t *testing.T) {
	t.Parallel()
	screen := termtest.New(80, 2)
	live := NewLive(screen, screen.Size)
	live.Set(func(int, int) []string { return []string{"frame"} })
	_, _ = live.Write([]byte("out\n"))
	if diff := cmp.Diff([]string{"out"}, screen.Lines(true)); diff != "" {
		t.Error(diff)
	}
	writes := 0
	live = NewLive(writer(func(b []byte) (int, error) { writes++; return len(b), nil }), func() (int, int) { return 80, 24 })
	for range 3 {
		live.Set(func(int, int) []string { return []string{"frame"} })
	}
	if writes != 1 {
		t.Errorf("%d writes for one frame", writes)
	}
	gone := errors.New("gone")
	live = NewLive(writer(func([]byte) (int, error) { return 0, gone }), func() (int, int) { return 80, 24 })
	if _, err := live.Write([]byte("x\n")); !errors.Is(err, gone) {
		t.Errorf("a terminal that is gone: %v", err)
	}
}

type writer func([]byte) (int, error)

func (f writer) Write(b []byte) (int, error) { return f(b) }

func someJob() Job {
	return Job{
		Program: "train.py", Elapsed: 192 * time.Second, Attempt: 1, Restarts: 3, World: 8, Node: 0,
		Nodes: []JobNode{{"alpha", 0, 6}, {"beta", 6, 2}},
		Ranks: []JobRank{
			{
				Rank: 0, Words: "run", Kind: Playing, Since: 9 * time.Second, Quiet: time.Second,
				Line: " 45%|####      | 45/100 [00:04<00:05]",
			},
			{Rank: 1, Words: "run", Kind: Playing, Since: 9 * time.Second, Quiet: 70 * time.Second},
			{Rank: 2, Words: "run", Kind: Playing, Since: 9 * time.Second, Line: "\x1b[32mgreen\x1b[0m " + strings.Repeat("long ", 40)},
			{Rank: 3, Words: "exited with code 0", Kind: Done, Since: 2 * time.Second},
			{Rank: 4, Words: "raised ValueError: \x1b[2Jbad", Kind: Failed, Since: 100 * time.Millisecond},
			{Rank: 5, Words: "start", Kind: Ahead, Since: 20 * time.Millisecond},
			{Rank: 6, Words: "run", Kind: Playing, Since: 9 * time.Second, Section: "load\x1b", Entered: 4 * time.Second, Steps: 120},
			{Rank: 7, Words: "run", Kind: Playing, Since: 9 * time.Second, Section: "load\x1b", Entered: 3 * time.Second, Steps: 121},
		},
		Unknown: 2, Waiting: []int{0, 2}, WaitingFor: 12 * time.Second, WaitingKey: "default_pg/0//cpu//0/1",
	}
}

func TestJobFrames(t *testing.T) {
	t.Parallel()
	j := someJob()
	frame := func(width, height int, style Style) string {
		return strings.Join(j.Lines(width, height, style), "\n") + "\n"
	}
	checkGolden(t, "job", frame(100, 20, Style{}))
	checkGolden(t, "job-colour", frame(100, 20, Style{Colour: true}))
	checkGolden(t, "job-narrow", frame(30, 20, Style{}))
	checkGolden(t, "job-low", frame(100, 4, Style{}))
	j = Job{Program: "a.py", Gathering: "2 of 3 nodes are present, node 2 is missing for 12s"}
	checkGolden(t, "job-gathering", frame(100, 20, Style{}))
	for width := range 120 {
		for height := 1; height < 14; height++ {
			lines := someJob().Lines(width, height, Style{Colour: true})
			if len(lines) > height {
				t.Fatalf("%d lines in %d", len(lines), height)
			}
			for _, l := range lines {
				if columns(l) > max(1, width-1) {
					t.Fatalf("%d columns in %d: %q", columns(l), width, l)
				}
			}
		}
	}
}
