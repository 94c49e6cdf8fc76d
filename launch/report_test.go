// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/diagnose/postmortem"
	"github.com/cohort-dist/cohort/internal/util/printable"
)

// TestEarlyEnd: a rank that ended well while others needed it is the cause of their failure; one that ended well after it,
// or beside a failure with a cause of its own, is not.
func TestEarlyEnd(t *testing.T) {
	t.Parallel()
	second := func(n float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(n * float64(time.Second))) }
	for name, c := range map[string]struct {
		kind postmortem.Kind
		left float64
		want string
	}{
		"at the same time": {
			postmortem.LostPeer, 2.4,
			"rank 1 ended with exit code 0 while others still needed it; then rank 0 lost its connection",
		},
		"before": {
			postmortem.LostPeer, 1,
			"rank 1 ended with exit code 0 while others still needed it; then rank 0 lost its connection",
		},
		"after":          {postmortem.LostPeer, 3, "rank 0 lost its connection"},
		"its own affair": {postmortem.Exception, 1, "rank 0 lost its connection"},
	} {
		a := Attempt{First: 0, Workers: []WorkerEnd{
			{Rank: 0, Code: 1, Kind: c.kind.String(), Words: "lost its connection", Ended: second(2)},
			{Rank: 1, Kind: postmortem.Success.String(), Words: "succeeded", Ended: second(c.left)},
		}}
		if got := a.Sentence(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestSinceWhen: the report says how long the others had been where they were, those of one place together.
func TestSinceWhen(t *testing.T) {
	t.Parallel()
	const reduce = "all_reduce (train.py:5)"
	state := func(rank cohort.Rank, doing string, idle time.Duration) RankState {
		return RankState{Rank: rank, Doing: doing, Idle: idle}
	}
	stopped := func(rank cohort.Rank) WorkerEnd {
		return WorkerEnd{Rank: rank, Kind: postmortem.Stopped.String(), Words: "was stopped", Code: -15}
	}
	for name, c := range map[string]struct {
		ranks []RankState
		want  string
	}{
		"the same": {
			[]RankState{state(1, reduce, 94*time.Second), state(2, reduce, 94*time.Second)},
			"ranks 1,2: stopped, in all_reduce (train.py:5) for at least 94 s\n",
		},
		"different": {
			[]RankState{state(1, reduce, 94*time.Second), state(2, reduce, 3*time.Second)},
			"ranks 1,2: stopped, in all_reduce (train.py:5) for at least 3 to 94 s\n",
		},
		"not long": {
			[]RankState{state(1, reduce, 94*time.Second), state(2, reduce, time.Millisecond)},
			"ranks 1,2: stopped, in all_reduce (train.py:5)\n",
		},
		"two places": {
			[]RankState{state(1, reduce, 94*time.Second), state(2, "load (train.py:9)", 0)},
			"rank 1: stopped, in all_reduce (train.py:5) for at least 94 s\n    rank 2: stopped, in load (train.py:9)\n",
		},
		"one of unknown": {
			[]RankState{state(1, reduce, 94*time.Second)},
			"rank 1: stopped, in all_reduce (train.py:5) for at least 94 s\n    rank 2: stopped\n",
		},
	} {
		r := Report{Sentence: "rank 0 raised ValueError", Attempts: []Attempt{{
			First:    0,
			Workers:  []WorkerEnd{{Kind: postmortem.Exception.String(), Words: "raised ValueError", Code: 1}, stopped(1), stopped(2)},
			Evidence: &Evidence{Ranks: c.ranks},
		}}}
		if got := r.Text(nil); !strings.HasSuffix(got, c.want) {
			t.Errorf("%s:\n%s\nwant at its end\n%s", name, got, c.want)
		}
	}
}

// TestEndedByTheUser: the report is one sentence about the signal, and says what each rank was doing, also one that answered with an
// exception of its own.
func TestEndedByTheUser(t *testing.T) {
	t.Parallel()
	r := Report{Signal: 2, Sentence: "the job was ended by SIGINT", Attempts: []Attempt{{
		First: 1, Signal: 2,
		Workers: []WorkerEnd{
			{Rank: 0, Kind: postmortem.Stopped.String(), Words: "was stopped by the launcher (SIGTERM)", Code: -15},
			{Rank: 1, Kind: postmortem.Exception.String(), Words: "raised KeyboardInterrupt", Code: 1},
			{Rank: 2, Kind: postmortem.Success.String(), Words: "succeeded"},
		},
		Evidence: &Evidence{Ranks: []RankState{
			{Rank: 0, Doing: "all_reduce (train.py:5)", Idle: 94 * time.Second},
			{Rank: 1, Doing: "load (train.py:9)"},
			{Rank: 2, Doing: "save (train.py:20)"},
		}},
	}}}
	const want = `cohort: the job was ended by SIGINT
  the ranks:
    rank 0: stopped by the launcher (SIGTERM), in all_reduce (train.py:5) for at least 94 s
    rank 1: raised KeyboardInterrupt, in load (train.py:9)
    rank 2: succeeded
`
	if got := r.Text(nil); got != want {
		t.Errorf("it says\n%s\nwant\n%s", got, want)
	}
}

// TestTextOfOthersIsPrintable: what a worker or another node says cannot move the cursor of the terminal that shows the report.
func TestTextOfOthersIsPrintable(t *testing.T) {
	t.Parallel()
	const evil = "\x1b]0;title\a\u009b2J\u202e"
	r := Report{
		Sentence: "rank 1 on " + evil + " failed:\ncohort: all is well", LogDir: evil, Bundle: evil,
		Attempts: []Attempt{{First: 1, Workers: []WorkerEnd{
			{Rank: 0, Host: evil, Code: 1, Words: evil, Where: evil},
			{Rank: 1, Host: evil, Code: 1, Words: evil, Where: evil, Advice: evil, Traceback: "Traceback:\n\tline " + evil},
		}}},
	}
	for name, text := range map[string]string{"text": r.Text(nil), "short": r.Short(4096), "very short": r.Short(300)} {
		if clean := printable.Lines(text); clean != text {
			t.Errorf("%s: %q", name, text)
		}
		if lines := strings.Split(text, "\n"); strings.HasPrefix(lines[1], "cohort:") || !strings.Contains(lines[0], "rank 1 on") {
			t.Errorf("%s: a sentence of two lines: %q", name, text)
		}
	}
	if text := r.Text(nil); !strings.Contains(text, "\n    \tline") {
		t.Errorf("the traceback has lost its lines: %q", text)
	}
}
