// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

// Package rpccmd is "cohort rpc": look into an RPC world, and call its workers.
package rpccmd

import (
	"encoding/base64"
	"fmt"
	"math"
	"math/big"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cohort-dist/cohort/cmd/cohort/internal/command"
	"github.com/cohort-dist/cohort/rpc"
	"github.com/cohort-dist/cohort/rpc/py"
	"github.com/cohort-dist/cohort/tensor"
)

// app carries what the commands share.
type app struct{ *command.App }

// New returns the command.
func New(shared *command.App) *cobra.Command {
	a := &app{shared}
	cmd := &cobra.Command{
		Use:   "rpc",
		Short: "Inspect an RPC world and call its workers",
		Long: strings.TrimSpace(`
Commands for the RPC workers, of torch.distributed.rpc and of Go programs, that use a
store. "ls" only reads the store and contacts no worker. "call", "refs" and "stubs"
talk to the workers themselves.

Every init_rpc of a process has its own keys in the store: rpc_prefix_0 for the first.
The commands use the latest; --round selects another.`),
		Example: strings.Trim(`
  cohort rpc ls --addr node0:29500
  cohort rpc call trainer1 stats.mean '[1, 2, 3]'
  cohort rpc refs ps
  cohort rpc stubs ps --out stubs`, "\n"),
		Args: command.NoSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.rpcListCommand(), a.rpcCallCommand(), a.rpcRefsCommand(), a.rpcStubsCommand())
	return cmd
}

// rpcFlags are the flags of every command that looks into an RPC world.
type rpcFlags struct {
	command.StoreFlags
	round int
}

// Bind adds the flags to cmd.
func (f *rpcFlags) Bind(a *command.App, cmd *cobra.Command) {
	f.StoreFlags.Bind(a, cmd)
	_ = cmd.Flags().MarkHidden("raw")
	cmd.Flags().IntVar(&f.round, "round", -1, "the number of the init_rpc, from 0; -1 is the latest")
}

// maxShown bounds the elements of a tensor that are printed.
const maxShown = 1000

// showValue turns a value of a call into what encoding/json can write. What JSON has no form for is an object with one
// key that says what it is.
func showValue(v any) any {
	switch v := v.(type) {
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return map[string]any{"float": fmt.Sprint(v)}
		}
	case complex128:
		return map[string]any{"complex": []float64{real(v), imag(v)}}
	case *big.Int:
		return v
	case []byte:
		return map[string]any{"bytes": base64.StdEncoding.EncodeToString(v)}
	case py.ByteArray:
		return map[string]any{"bytearray": base64.StdEncoding.EncodeToString(v)}
	case []any:
		return showList(v)
	case py.Tuple:
		return showList(v)
	case py.Set:
		return map[string]any{"set": showList(v)}
	case py.FrozenSet:
		return map[string]any{"frozenset": showList(v)}
	case *py.Dict:
		return showDict(v)
	case py.Global:
		return map[string]any{"global": v.String()}
	case *py.Object:
		return map[string]any{"object": fmt.Sprint(v.Class), "args": showList(v.Args)}
	case *tensor.Tensor:
		return showTensor(v)
	case *tensor.Sparse:
		return map[string]any{"sparse": map[string]any{"shape": v.Shape, "indices": showTensor(v.Indices), "values": showTensor(v.Values)}}
	case rpc.AnyRef:
		return map[string]any{"reference": v.ID(), "owner": v.Owner().Name}
	case nil, bool, int64, string:
	default:
		return map[string]any{"value": fmt.Sprint(v)}
	}
	return v
}

func showList(list []any) []any {
	out := make([]any, len(list))
	for i, v := range list {
		out[i] = showValue(v)
	}
	return out
}

// showDict makes an object of a dict whose keys are texts, else a list of pairs.
func showDict(d *py.Dict) any {
	object := make(map[string]any, d.Len())
	for _, p := range d.Pairs {
		key, ok := p.Key.(string)
		if !ok {
			pairs := make([]any, len(d.Pairs))
			for i, p := range d.Pairs {
				pairs[i] = []any{showValue(p.Key), showValue(p.Value)}
			}
			return map[string]any{"dict": pairs}
		}
		object[key] = showValue(p.Value)
	}
	return object
}

func showTensor(t *tensor.Tensor) any {
	out := map[string]any{"dtype": t.DType().String(), "shape": t.Shape()}
	if n := t.Numel(); n > maxShown {
		out["elements"] = fmt.Sprintf("%d, too many to show", n)
	} else {
		flat, err := t.Reshape(n)
		if err != nil {
			return map[string]any{"tensor": err.Error()}
		}
		elements := make([]any, n)
		for i := range elements {
			x, err := flat.At(i)
			if err != nil {
				return map[string]any{"tensor": err.Error()}
			}
			elements[i] = showElement(x)
		}
		out["elements"] = elements
	}
	return map[string]any{"tensor": out}
}

// showElement keeps what JSON can write.
func showElement(x any) any {
	switch x := x.(type) {
	case float64:
		return showValue(x)
	case float32:
		return showValue(float64(x))
	case bool, int64, int32, int16, int8, uint8, uint16, uint32, uint64:
		return x
	}
	return fmt.Sprint(x)
}
