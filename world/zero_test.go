// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package world_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/autograd"
	"github.com/cohort-dist/cohort/autograd/ddp"
	"github.com/cohort-dist/cohort/autograd/distautograd"
	"github.com/cohort-dist/cohort/autograd/nn"
	"github.com/cohort-dist/cohort/elastic"
	"github.com/cohort-dist/cohort/group"
	"github.com/cohort-dist/cohort/launch"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/optim"
	"github.com/cohort-dist/cohort/optim/remote"
	"github.com/cohort-dist/cohort/rendezvous"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/store"
	"github.com/cohort-dist/cohort/store/filestore"
	"github.com/cohort-dist/cohort/store/tcpstore"
	"github.com/cohort-dist/cohort/tensor"
	"github.com/cohort-dist/cohort/tensor/safetensors"
	"github.com/cohort-dist/cohort/world"
)

// zeroValues are zero values of all public types with methods.
var zeroValues = []any{
	new(world.World), new(autograd.Context), new(autograd.Node), new(autograd.Pass), new(autograd.Reduction),
	new(autograd.Variable), new(autograd.Value),
	new(ddp.Model), new(distautograd.Context), new(distautograd.Engine),
	new(nn.Attention), new(nn.Embedding), new(nn.Func), new(nn.BatchNorm), new(nn.LayerNorm), new(nn.Linear), new(nn.Sequential),
	new(cohort.Code), new(cohort.Error), new(cohort.Future[int]), new(cohort.Promise[int]), new(cohort.Rank),
	new(elastic.Coordinator), new(elastic.ID), new(elastic.Member), new(elastic.Starter),
	new(group.Coalescer), new(group.Group), new(group.Mesh), new(group.OpType), new(group.P2POp), new(group.ReduceOp), new(group.Work),
	new(launch.Attempt), new(launch.Config), new(launch.Evidence), new(launch.How), new(launch.StdMap), new(launch.Plan),
	new(launch.WorkerPhase), new(launch.Report), new(launch.Std), new(launch.Hosting), new(launch.Protection),
	new(observe.Event), new(observe.Hook), new(observe.Phase),
	new(optim.Optimizer), new(optim.Adadelta), new(optim.Adagrad), new(optim.Adam), new(optim.AdamW), new(optim.Adamax),
	new(optim.RMSprop), new(optim.Rprop), new(optim.SGD), new(optim.SparseAdam), new(remote.Optimizer),
	new(rendezvous.Member), new(rendezvous.AttemptPrefix), new(rendezvous.Plan), new(rendezvous.Registry), new(rendezvous.URL),
	new(rpc.Agent), new(rpc.RemoteError), new(rpc.Client), new(rpc.Profile), new(rpc.Ref[int]), new(rpc.Registry), new(rpc.Reason),
	new(py.ByteArray), new(py.Dict), new(py.Device), new(py.Global), new(py.Object), new(py.Pair), new(py.FrozenSet), new(py.Set),
	new(py.Tuple), new(py.Typed),
	new(store.Feature), new(store.Memory), new(store.PrefixStore), new(filestore.Store),
	new(tcpstore.Client), new(tcpstore.Dialect), new(tcpstore.Identity), new(tcpstore.Server), new(tcpstore.Shared), new(tcpstore.Stats),
	new(tensor.BF16), new(tensor.DType), new(tensor.F16), new(tensor.Pool), new(tensor.Sparse), new(tensor.Storage),
	new(tensor.Tensor), new(safetensors.File),
}

// connected are the types that stand for something outside of the value: a connection, a file, a membership. Only their constructors
// make them, and of a zero one nothing but its text can be had.
var connected = []string{
	"world.World", "group.Group", "rpc.Agent", "rpc.Client", "tcpstore.Client", "tcpstore.Server", "filestore.Store", "elastic.Coordinator",
	"elastic.Member", "elastic.Starter", "ddp.Model", "distautograd.Context", "distautograd.Engine", "remote.Optimizer",
}

// mayPanic are methods that panic when they are misused, with a message.
var mayPanic = []string{"rpc.Registry.MustClass", "rpc.Registry.MustHandle", "tensor.Tensor.Dim", "cohort.Promise[int].Complete"}

// TestZeroValues: a zero value gives an error, or does nothing, where it cannot be used. It does not panic, and does not wait longer
// than its context.
func TestZeroValues(t *testing.T) {
	t.Parallel()
	for _, v := range zeroValues {
		typ := reflect.TypeOf(v)
		name := typ.Elem().String()
		for m := range typ.Methods() {
			if slices.Contains(mayPanic, name+"."+m.Name) || slices.Contains(connected, name) && m.Name != "String" {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			panicked := make(chan any, 1)
			go func() {
				defer func() { panicked <- recover() }()
				m.Func.Call(append([]reflect.Value{reflect.New(typ.Elem())}, zeroArguments(ctx, m.Type)...))
			}()
			select {
			case p := <-panicked:
				if p != nil {
					t.Errorf("%s.%s of a zero value panics: %v", name, m.Name, p)
				}
			case <-time.After(time.Minute):
				t.Errorf("%s.%s of a zero value does not return", name, m.Name)
			}
			cancel()
		}
	}
}

// zeroArguments returns zero values for the arguments of a method, but for a context, functions and writers, and nothing for the
// last one of a variadic method.
func zeroArguments(ctx context.Context, method reflect.Type) []reflect.Value {
	var args []reflect.Value
	for i := 1; i < method.NumIn(); i++ {
		in := method.In(i)
		switch {
		case method.IsVariadic() && i == method.NumIn()-1:
		case in == reflect.TypeFor[context.Context]():
			args = append(args, reflect.ValueOf(ctx))
		case in == reflect.TypeFor[io.Writer]():
			args = append(args, reflect.ValueOf(io.Discard))
		case in.Kind() == reflect.Func:
			args = append(args, reflect.MakeFunc(in, func([]reflect.Value) []reflect.Value {
				results := make([]reflect.Value, in.NumOut())
				for k := range results {
					results[k] = reflect.Zero(in.Out(k))
				}
				return results
			}))
		default:
			args = append(args, reflect.Zero(in))
		}
	}
	return args
}

// TestZeroValuesAreAll: every public type with methods is among those whose zero values are tried.
func TestZeroValuesAreAll(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/api.txt")
	if err != nil {
		t.Fatal(err)
	}
	tried := map[string]bool{
		"tcpstore.Lease": true,                        // it embeds a server, which its constructor sets
		"cluster.Member": true, "cluster.Store": true, // of a module that this one does not require, which has a test of its own
	}
	for _, v := range zeroValues {
		name, _, _ := strings.Cut(reflect.TypeOf(v).Elem().String(), "[")
		tried[name] = true
	}
	method := regexp.MustCompile(`^func \(\w+ \*?(\w+)`)
	pkg, found := "", 0
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(strings.TrimSpace(line), "package "); ok {
			pkg = path[strings.LastIndex(path, "/")+1:]
			if path == "." {
				pkg = "cohort"
			}
		}
		m := method.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		found++
		if name := fmt.Sprint(pkg, ".", m[1]); !tried[name] {
			tried[name] = true
			t.Errorf("%s has methods and is not among zeroValues", name)
		}
	}
	if found < 300 {
		t.Errorf("only %d methods were found", found)
	}
}

// TestZeroReference: calling a method of a reference that refers to nothing is an error.
func TestZeroReference(t *testing.T) {
	t.Parallel()
	var ref rpc.Ref[int]
	_, called := rpc.CallMethod[int](t.Context(), &ref, "add")
	_, awaited := rpc.AsyncMethod[int](t.Context(), &ref, "add").Await(t.Context())
	_, left := rpc.RemoteMethod[int](t.Context(), &ref, "add")
	_, fetched := ref.Fetch(t.Context())
	for _, err := range []error{called, awaited, left, fetched} {
		if !errors.Is(err, cohort.InvalidArgument) {
			t.Errorf("%v, want an invalid argument", err)
		}
	}
}

// TestZeroMemory: a store that was only declared is an empty one.
func TestZeroMemory(t *testing.T) {
	t.Parallel()
	var m store.Memory
	if n, err := m.Add(t.Context(), "k", 2); n != 2 || err != nil || m.Timeout() != store.DefaultTimeout {
		t.Errorf("%d, %v, timeout %v", n, err, m.Timeout())
	}
	clone, err := m.Clone(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := clone.Add(t.Context(), "k", 1); n != 3 || err != nil {
		t.Errorf("the clone: %d, %v", n, err)
	}
}
