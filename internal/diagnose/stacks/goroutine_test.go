// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const goTraceback = `goroutine 1 gp=0xc000002380 m=nil [select, 2 minutes]:
github.com/cohort-dist/cohort/group.(*Work).Wait(0xc000178000, {0x8a2f10, 0xc00001c0a8})
	github.com/cohort-dist/cohort/group/work.go:120 +0x1d
main.step[...](0x1)
	/home/u/train.go:53 +0x45
main.main()
	/home/u/train.go:20 +0x1

goroutine 7 [running]:
main.load(...)
	/home/u/load.go:9
created by main.main in goroutine 1
	/home/u/train.go:18 +0x3f

goroutine 9 nonsense

`

func TestParseGo(t *testing.T) {
	t.Parallel()
	want := []Thread{
		{ID: 1, Name: "goroutine", State: "S", Kernel: "select", Minutes: 2, Frames: []Frame{
			{Func: "github.com/cohort-dist/cohort/group.(*Work).Wait", File: "github.com/cohort-dist/cohort/group/work.go", Line: 120},
			{Func: "main.step", File: "/home/u/train.go", Line: 53},
			{Func: "main.main", File: "/home/u/train.go", Line: 20},
		}},
		{ID: 7, Name: "goroutine", State: "R", Kernel: "running", Frames: []Frame{{Func: "main.load", File: "/home/u/load.go", Line: 9}}},
	}
	if diff := cmp.Diff(want, ParseGo(goTraceback)); diff != "" {
		t.Error(diff)
	}
}

// TestParseThisProcess reads what this runtime prints.
func TestParseThisProcess(t *testing.T) {
	t.Parallel()
	buf := make([]byte, 1<<20)
	all := ParseGo(string(buf[:runtime.Stack(buf, true)]))
	if !slices.ContainsFunc(all, func(g Thread) bool {
		return slices.ContainsFunc(g.Frames, func(f Frame) bool {
			return strings.HasSuffix(f.Func, "stacks.TestParseThisProcess") && strings.HasSuffix(f.File, "goroutine_test.go") && f.Line > 0
		})
	}) {
		t.Errorf("this test is not in\n%+v", all)
	}
}

func FuzzParseGo(f *testing.F) {
	f.Add(goTraceback)
	f.Fuzz(func(_ *testing.T, text string) { ParseGo(text) })
}
