// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const results = `go: downloading
{"Action":"run","Package":"x/torchtest","Test":"TestI/torch-2.6"}
{"Action":"output","Package":"x/torchtest","Test":"TestI/torch-2.6","Output":"    a_test.go:4: count: installation 2.6: PyTorch 2.6.0\n"}
{"Action":"output","Package":"x/torchtest","Test":"TestI/torch-newest","Output":"    a_test.go:4: count: installation newest: PyTorch 2.14.1, no TensorPipe\n"}
{"Action":"run","Package":"x/store","Test":"TestA"}
{"Action":"run","Package":"x/store","Test":"TestA/torch-2.6"}
{"Action":"run","Package":"x/store","Test":"TestA/torch-2.6/one"}
{"Action":"run","Package":"x/store","Test":"TestA/torch-2.6/two"}
{"Action":"pass","Package":"x/store","Test":"TestA/torch-2.6/one"}
{"Action":"pass","Package":"x/store","Test":"TestA/torch-2.6/two"}
{"Action":"pass","Package":"x/store","Test":"TestA/torch-2.6"}
{"Action":"fail","Package":"x/store","Test":"TestA/torch-newest"}
{"Action":"fail","Package":"x/store","Test":"TestA"}
{"Action":"pass","Package":"x/rpc","Test":"TestB/torch-2.6"}
{"Action":"output","Package":"x/rpc","Test":"TestB/torch-newest","Output":"    b_test.go:4: this build cannot: no TensorPipe\n"}
{"Action":"skip","Package":"x/rpc","Test":"TestB/torch-newest"}
{"Action":"pass","Package":"x/rpc","Test":"TestC"}
{"Action":"pass","Package":"x/rpc","Test":"TestAutogradRing/torch-2.6"}
{"Action":"output","Package":"x/group","Test":"TestReconfigure","Output":"    r_test.go:4: interop: uses torch-newest\n"}
{"Action":"run","Package":"x/group","Test":"TestReconfigure"}
{"Action":"run","Package":"x/group","Test":"TestReconfigure/one"}
{"Action":"pass","Package":"x/group","Test":"TestReconfigure/one"}
{"Action":"pass","Package":"x/group","Test":"TestReconfigure"}
{"Action":"output","Package":"x/group","Test":"TestMixed","Output":"    r_test.go:4: interop: uses torch-newest\n"}
{"Action":"output","Package":"x/group","Test":"TestMixed","Output":"    r_test.go:4: interop: uses torch-2.6\n"}
{"Action":"output","Package":"x/group","Test":"TestMixed","Output":"    r_test.go:4: interop: uses torch-2.6\n"}
{"Action":"pass","Package":"x/group","Test":"TestMixed"}
`

func TestTable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in, page := filepath.Join(dir, "in.json"), filepath.Join(dir, "page.md")
	for file, text := range map[string]string{in: results, page: "before\n" + begin + "old\n" + end + "after\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := run([]string{in, page}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := "before\n" + begin + `| tests that passed | PyTorch 2.6.0 | PyTorch 2.14.1, no TensorPipe |
|---|---|---|
| ` + "`TCPStore`: server, client, command line" + ` | 2 | **1 failed**, 0 passed |
| process groups | 1 | 1 |
| members change without restarts (` + "`reconfigure`" + `) | - | 1 |
| RPC, references | 1 | the build cannot |
| distributed autograd and optimizers | 1 | - |
` + end + "after\n"
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestAreas: every area has tests below interop.
func TestAreas(t *testing.T) {
	t.Parallel()
	for _, a := range areas {
		var code strings.Builder
		for _, pattern := range []string{"../../../interop/%/*_test.go", "../../../interop/*/%/*_test.go"} {
			files, _ := filepath.Glob(strings.ReplaceAll(pattern, "%", a.pkg))
			for _, file := range files {
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				code.Write(text)
			}
		}
		for _, prefix := range append([]string{"Test"}, a.tests...) {
			if !strings.Contains(code.String(), "\nfunc "+prefix) {
				t.Errorf("%s: no %s in package %s", a.name, prefix, a.pkg)
			}
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	page := filepath.Join(dir, "page.md")
	if err := os.WriteFile(page, []byte("no place\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"usage":              {"one"},
		"make interop":       {filepath.Join(dir, "none"), page},
		"has no place":       {page, page},
		"no such file or di": {page, filepath.Join(dir, "none.md")},
	} {
		if err := run(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
}
