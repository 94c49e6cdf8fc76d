// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

//nolint:errcheck // a type assertion that fails fails the test
package wire_test

import (
	"encoding/base64"
	"math/big"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort/internal/python/pickle"
	"github.com/cohort-dist/cohort/internal/testing/torchtest"
)

// canonical is the one pickle of a value, whatever protocol it came from; equal values have equal ones.
func canonical(t *testing.T, v any) string {
	t.Helper()
	b, err := pickle.Encode(normal(v))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// generator makes random Python values out of Go ones.
type generator struct{ *rand.Rand }

func (g generator) text() string {
	alphabet := []rune("aZ09_ .\\\n'\"é€😀\x00\x7f\u0080")
	n := g.IntN(12)
	if g.IntN(20) == 0 {
		n = 200 + g.IntN(200)
	}
	s := make([]rune, n)
	for i := range s {
		s[i] = alphabet[g.IntN(len(alphabet))]
	}
	return string(s)
}

func (g generator) value(depth int) any {
	kind := g.IntN(14)
	if depth == 0 {
		kind = g.IntN(8)
	}
	switch kind {
	case 0:
		return nil
	case 1:
		return g.IntN(2) == 0
	case 2:
		return g.Int64() >> g.IntN(64) * int64(1-2*g.IntN(2))
	case 3:
		v := new(big.Int).Lsh(big.NewInt(g.Int64N(1<<62)+1), uint(64+g.IntN(2000)))
		if g.IntN(2) == 0 {
			v.Neg(v)
		}
		return v
	case 4:
		return []float64{0, 1.5, -2.25e300, 5e-324, g.NormFloat64(), float64(g.Int64())}[g.IntN(6)]
	case 5, 6:
		return g.text()
	case 7:
		b := make([]byte, g.IntN(300))
		for i := range b {
			b[i] = byte(g.Uint32())
		}
		return pickle.Bytes(b)
	case 8, 9:
		n := g.IntN(5)
		if g.IntN(30) == 0 {
			n = 1500 // more than one batch
			depth = 1
		}
		items := make([]any, n)
		for i := range items {
			items[i] = g.value(depth - 1)
		}
		if kind == 8 {
			return pickle.NewList(items...)
		}
		return pickle.NewTuple(items...)
	case 10, 11:
		d := &pickle.Dict{}
		for range g.IntN(5) {
			d.Set(g.text(), g.value(depth-1))
		}
		return d
	case 12:
		set := map[string]bool{}
		for range g.IntN(5) {
			set[g.text()] = true
		}
		var items []any
		for k := range set {
			items = append(items, k)
		}
		if g.IntN(2) == 0 {
			return &pickle.FrozenSet{Items: items}
		}
		return &pickle.Set{Items: items}
	default:
		shared := pickle.NewList(g.value(depth-1), "shared")
		return pickle.NewTuple(shared, shared)
	}
}

// normal turns the protocol 0 to 3 forms of bytes and sets back into values. It parts what is shared, since not every
// protocol keeps that.
func normal(v any) any {
	switch v := v.(type) {
	case string:
		return strings.Clone(v)
	case pickle.Bytes:
		return slices.Clone(v)
	case *big.Int:
		return new(big.Int).Set(v)
	case *pickle.List:
		return pickle.NewList(normals(v.Items)...)
	case *pickle.Tuple:
		return pickle.NewTuple(normals(v.Items)...)
	case *pickle.Set:
		return &pickle.Set{Items: sorted(v.Items)}
	case *pickle.FrozenSet:
		return &pickle.FrozenSet{Items: sorted(v.Items)}
	case *pickle.Dict:
		d := &pickle.Dict{}
		for _, p := range v.Pairs {
			d.Pairs = append(d.Pairs, pickle.Pair{Key: normal(p.Key), Value: normal(p.Value)})
		}
		return d
	case *pickle.Object:
		g, _ := v.Class.(pickle.Global)
		switch {
		case g.Name == "encode" && len(v.Args.Items) == 2:
			var b []byte
			for _, c := range v.Args.Items[0].(string) {
				b = append(b, byte(c))
			}
			return pickle.Bytes(b)
		case g.Name == "bytes" && len(v.Args.Items) == 0:
			return pickle.Bytes{}
		case g.Name == "set":
			return &pickle.Set{Items: sorted(v.Args.Items[0].(*pickle.List).Items)}
		case g.Name == "frozenset":
			return &pickle.FrozenSet{Items: sorted(v.Args.Items[0].(*pickle.List).Items)}
		}
	}
	return v
}

// sorted orders the members of a set, which are strings here.
func sorted(in []any) []any {
	out := slices.Clone(in)
	slices.SortFunc(out, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
	return out
}

func normals(in []any) []any {
	out := make([]any, len(in))
	for i, v := range in {
		out[i] = normal(v)
	}
	return out
}

// TestPicklesAgainstCPython sends random values through CPython: what Go writes in both protocols Python reads, writes
// again in all six, and Go reads as the same value.
func TestPicklesAgainstCPython(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		host, inside := tr.TempDir(t)
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		g := generator{rand.New(rand.NewPCG(seed, 1))}
		var values []any
		var lines []string
		for i := range 600 {
			v := g.value(4)
			b, err := pickle.Append(nil, v, []int{4, 2}[i%2])
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, v)
			lines = append(lines, base64.StdEncoding.EncodeToString(b))
		}
		if err := os.WriteFile(filepath.Join(host, "in"), []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		tr.Run(t, torchtest.Script{Args: []string{inside}, Source: `
import base64, pickle, sys
with open(sys.argv[1] + "/out", "w") as out:
    for line in open(sys.argv[1] + "/in"):
        v = pickle.loads(base64.b64decode(line))
        print(" ".join(base64.b64encode(pickle.dumps(v, p)).decode() for p in range(6)), file=out)
`})
		out, err := os.ReadFile(filepath.Join(host, "out"))
		if err != nil {
			t.Fatal(err)
		}
		results := strings.Split(strings.TrimSpace(string(out)), "\n")
		if len(results) != len(values) {
			t.Fatalf("%d values came back of %d", len(results), len(values))
		}
		for i, line := range results {
			for protocol, text := range strings.Fields(line) {
				b, err := base64.StdEncoding.DecodeString(text)
				if err != nil {
					t.Fatal(err)
				}
				got, err := pickle.Decode(b, pickle.Limits{})
				if err != nil {
					t.Fatalf("value %d, protocol %d: %v\n%q", i, protocol, err, b)
				}
				if have, want := canonical(t, got), canonical(t, values[i]); have != want {
					t.Fatalf("value %d, protocol %d:\n got %q\nwant %q", i, protocol, have, want)
				}
			}
		}
	})
}

// TestPythonValuesSurviveGo lets Python make the values, and compare what Go wrote with what it sent.
func TestPythonValuesSurviveGo(t *testing.T) {
	torchtest.Each(t, func(t *testing.T, tr *torchtest.Torch) {
		host, inside := tr.TempDir(t)
		p := tr.Start(t, torchtest.Script{Args: []string{inside}, Source: `
import base64, collections, enum, fractions, pickle, random, sys
import torch
def make(depth):
    kind = random.randrange(20 if depth else 11)
    if kind == 0: return None
    if kind == 1: return random.random() < 0.5
    if kind == 2: return random.randrange(-2**random.randrange(1, 80), 2**random.randrange(1, 80))
    if kind == 3: return random.choice([0.0, -0.0, float("inf"), 1e-310, random.gauss(0, 1)])
    if kind == 4: return complex(random.random(), -1)
    if kind in (5, 6): return "".join(chr(random.choice([65, 10, 92, 0x20ac, 0x1f600, 0xd800])) for _ in range(random.randrange(20)))
    if kind == 7: return random.randbytes(random.randrange(300))
    if kind == 8: return bytearray(random.randbytes(5))
    if kind == 9: return random.choice([int, collections.OrderedDict, torch.float32, torch.add, len, torch.nn.Module.forward])
    if kind == 10: return fractions.Fraction(random.randrange(100), 7)
    if kind < 13: return [make(depth - 1) for _ in range(random.randrange(5))]
    if kind < 15: return tuple(make(depth - 1) for _ in range(random.randrange(5)))
    if kind < 17: return {random.choice([i, str(i), (i, "k")]): make(depth - 1) for i in range(random.randrange(5))}
    if kind == 17: return {random.randrange(50) for _ in range(5)}
    if kind == 18: return frozenset(str(i) for i in range(random.randrange(4)))
    shared = [make(depth - 1)]
    return collections.OrderedDict(a=shared, b=shared, c=torch.Size([2, 3]))
values = [make(4) for _ in range(500)]
with open(sys.argv[1] + "/in", "w") as f:
    for i, v in enumerate(values):
        print(base64.b64encode(pickle.dumps(v, i % 6)).decode(), file=f)
print("ready")
input()
for v, line in zip(values, open(sys.argv[1] + "/out")):
    got = pickle.loads(base64.b64decode(line))
    assert got == v and type(got) is type(v), (got, v)
    assert isinstance(v, collections.OrderedDict) is False or got["a"] is got["b"]
print("same")
`})
		p.Expect(t, "ready")
		in, err := os.ReadFile(filepath.Join(host, "in"))
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for line := range strings.Lines(string(in)) {
			b, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
			if err != nil {
				t.Fatal(err)
			}
			v, err := pickle.Decode(b, pickle.Limits{})
			if err != nil {
				t.Fatalf("%v\n%q", err, b)
			}
			out, err := pickle.Encode(v)
			if err != nil {
				t.Fatal(err)
			}
			lines = append(lines, base64.StdEncoding.EncodeToString(out))
		}
		if err := os.WriteFile(filepath.Join(host, "out"), []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
		p.Send(t, "go")
		p.Expect(t, "same")
		p.MustExit(t, 20*time.Second)
	})
}
