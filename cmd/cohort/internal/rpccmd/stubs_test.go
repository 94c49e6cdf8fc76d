// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package rpccmd

import (
	"context"
	"strings"
	"testing"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/rpc"
)

type stubServer struct{}

func (*stubServer) Pull() []float64 { return nil }

func (*stubServer) Push(context.Context, []float64) error { return nil }

func TestStubFiles(t *testing.T) {
	t.Parallel()
	type args struct {
		Size  int `rpc:"size,required"`
		Rate  float64
		From  string
		Again int `rpc:"again,required"`
	}
	reg := rpc.NewRegistry().
		MustHandle("ps.new_server", func(args) *stubServer { return nil }, rpc.Doc(`a "new" one`)).
		MustHandle("ps.deep.add", func(a, b int) int { return a + b }, rpc.Params("a", "b")).
		MustClass("ps.Server", &stubServer{})
	files, err := stubFiles("ps0", reg.Describe())
	if err != nil {
		t.Fatal(err)
	}
	head := "\"\"\"What the Go worker ps0 serves. Written by `cohort rpc stubs`; the bodies are never run.\"\"\"\n" +
		"from __future__ import annotations\n\nimport typing\n\nimport torch\nimport torch.distributed.rpc\n"
	want := map[string]string{
		"ps/__init__.py": head + `

class Server:
    def pull(self) -> list[float]:
        raise NotImplementedError

    def push(self, arg0: list[float]) -> None:
        raise NotImplementedError


def new_server(size: int, rate: float = ..., from_: str = ..., again: int = ...) -> Server:
    """a \"new\" one"""
    raise NotImplementedError
`,
		"ps/deep.py": head + `

def add(a: int, b: int) -> int:
    raise NotImplementedError
`,
	}
	if len(files) != len(want) {
		t.Errorf("%d files", len(files))
	}
	for name, text := range want {
		if files[name] != text {
			t.Errorf("%s is\n%s\nwant\n%s", name, files[name], text)
		}
	}
	for _, bad := range []string{"ps.class", "ps.a-b", "ps.:x"} {
		if _, err := stubFiles("ps0", []rpc.FunctionInfo{{Name: bad}}); cohort.CodeOf(err) != cohort.NotSupported ||
			!strings.Contains(err.Error(), "no Python name") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := stubFiles("ps0", []rpc.FunctionInfo{{Name: "alone"}}); err == nil || !strings.Contains(err.Error(), "no module") {
		t.Errorf("%v", err)
	}
}
