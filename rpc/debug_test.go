// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"strconv"
	"sync"
	"testing"
	"time"

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
