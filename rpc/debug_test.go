// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cohort-dist/cohort/tensor"
)

// References looks at an object whose owner changes it all the time: a map that is written while another goroutine ranges over it
// would end the process.
func TestReferencesOfLiveMap(t *testing.T) {
	agents := world(t, 1, true, nil)
	live := map[string]*tensor.Tensor{"a": tensor.Must(tensor.New(tensor.Float32, 4))}
	ref, err := NewRef(agents[0], live)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		one := live["a"]
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				live[strconv.Itoa(i%64)] = one
			}
		}
	})
	for begun := time.Now(); time.Since(begun) < 100*time.Millisecond; {
		if objects := agents[0].References().Objects; len(objects) != 1 || objects[0].Size != 16 {
			t.Errorf("got %+v", objects)
			break
		}
	}
	close(stop)
	work.Wait()
	_ = ref.Close()
	shutdown(t, agents)
}

// References that an object holds are found as they were when it was made, those of a Holder as they are.
func TestReferencesInside(t *testing.T) {
	agents := world(t, 1, true, nil)
	inner, err := NewRef(agents[0], 1)
	if err != nil {
		t.Fatal(err)
	}
	type box struct {
		Name string
		Refs []*Ref[int]
	}
	outer, err := NewRef(agents[0], &box{"b", []*Ref[int]{inner}})
	if err != nil {
		t.Fatal(err)
	}
	found := func() int {
		for _, o := range agents[0].References().Objects {
			if o.ID == outer.ID() {
				return len(o.Holds)
			}
		}
		return -1
	}
	if n := found(); n != 1 {
		t.Errorf("%d references are seen inside", n)
	}
	_ = inner.Close()
	if n := found(); n != 0 {
		t.Errorf("%d references are seen inside after it was closed", n)
	}
	_ = outer.Close()
	shutdown(t, agents)
}

func TestConnectedComponents(t *testing.T) {
	t.Parallel()
	got := connectedComponents(map[int][]int{5: {1}, 1: {5, 5}, 2: nil, 3: {9}, 9: {4}, 4: nil, 7: {7}})
	if diff := cmp.Diff([][]int{{1, 5}, {2}, {3, 4, 9}, {7}}, got); diff != "" {
		t.Error(diff)
	}
	if none := connectedComponents(map[string][]string{}); none != nil {
		t.Errorf("islands of nothing: %v", none)
	}
}

// Peers that cause lines of the same text fill no log; other texts are written, and later it logs how many are missing.
func TestLogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		logger := slog.New(limitLog(slog.NewTextHandler(&out, nil)))
		for range 12_000 {
			logger.With(slog.String("peer", "w1")).Warn("control frame dropped")
		}
		logger.Warn("something else")
		if n := strings.Count(out.String(), "control frame dropped"); n != logLines {
			t.Errorf("%d lines of the same text", n)
		}
		if !strings.Contains(out.String(), "something else") {
			t.Error("another text was left out")
		}
		time.Sleep(logWindow)
		logger.Warn("control frame dropped")
		if !strings.Contains(out.String(), "left_out=11900") {
			t.Error("the number of missing lines is not logged")
		}
	})
}
