// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package flightrec

import (
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort/internal/testing/datatest"
)

// TestVerdicts: what the ranks have recorded, and what is said of it.
func TestVerdicts(t *testing.T) {
	datatest.Run(t, "verdicts.txt", func(t *testing.T, input string) string {
		t.Helper()
		v := Analyze(dumpsOf(readStories(t, input)...))
		if strings.Contains(v.Sentence, "\n") {
			t.Error("the sentence has a line end")
		}
		text := string(v.Finding)
		for i, rank := range v.Ranks {
			text += []string{"", ","}[min(i, 1)] + " " + strconv.Itoa(rank) //nolint:perfsprint // a few ranks
		}
		return text + "\n" + v.Sentence
	})
}

// recording is what one rank has done in a group.
type recording struct {
	Rank, Size  int
	Group       string
	GlobalRanks []int
	story       *story
}

// readStories reads what ranks have done, in the form of [datatest.Read]:
//
//	rank 0 Size=2
//	  does barrier
//	  enters recv P2P DType=uint8 In=16 Peer=1
//
// A rank does, enters, queues (without starting it) or fails an operation; a failure has its error in front. The group
// is "0" without a name.
func readStories(t *testing.T, input string) []*story {
	t.Helper()
	var all struct{ Ranks []recording }
	var stories []*story
	step := func(do func(s *story, e Entry, failure string)) datatest.Line {
		return func(parent any, rest string) error {
			r := parent.(*recording) //nolint:errcheck,forcetypeassert // nothing else has steps
			if r.Group == "" {
				r.Group = "0"
			}
			if r.story == nil {
				r.story = newStory(r.Group, r.Rank, r.Size, r.GlobalRanks...)
			}
			failure := ""
			if strings.HasPrefix(rest, `"`) {
				failure, rest, _ = strings.Cut(rest[1:], `" `)
			}
			e := Entry{Peer: -1}
			e.Op, rest, _ = strings.Cut(rest, " ")
			err := datatest.Fields(&e, rest)
			do(r.story, e, failure)
			return err
		}
	}
	datatest.Read(t, input, &all, map[string]datatest.Line{
		"does":   step(func(s *story, e Entry, _ string) { s.does(e) }),
		"enters": step(func(s *story, e Entry, _ string) { s.enters(e) }),
		"queues": step(func(s *story, e Entry, _ string) { s.queues(e) }),
		"fails":  step(func(s *story, e Entry, failure string) { s.fails(e, failure) }),
	})
	for _, r := range all.Ranks {
		if r.story == nil {
			r.story = newStory("0", r.Rank, r.Size)
		}
		stories = append(stories, r.story)
	}
	return stories
}
