// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package cohortwire

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cohort-dist/cohort/tensor"
)

const echoEnv = "COHORTWIRE_ECHO_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(echoEnv) != "" {
		serveEcho()
		return
	}
	goleak.VerifyTestMain(m)
}

// serveEcho answers every request with its own content, in a process of its own, until stdin closes.
func serveEcho() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	go func() {
		pool := tensor.NewPool(256 << 20)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = Start(conn, nil, Config{Identity: Identity{Name: "echo", ID: 1}, OnFrame: echo, Alloc: pool.Get})
			}()
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// echo answers from a goroutine of its own, as an agent does.
func echo(l *Link, f *Frame) {
	go func() {
		_ = l.Send(context.Background(), &Frame{Type: 0x203, ID: f.ID, Payload: f.Payload, Storages: f.Storages})
		f.Release()
	}()
}

func echoServer(b *testing.B) *Link {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), echoEnv+"=1")
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	conn, err := net.Dial("tcp", strings.TrimSpace(line))
	if err != nil {
		b.Fatal(err)
	}
	pool := tensor.NewPool(256 << 20)
	l, err := Start(conn, nil, Config{Identity: Identity{Name: "bench"}, OnFrame: matching(ignore), Dialled: true, Alloc: pool.Get})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	return l
}

func benchmarkEcho(b *testing.B, size int) {
	b.Helper()
	l := echoServer(b)
	s, _ := tensor.NewStorage(size)
	payload := make([]byte, 200)
	b.SetBytes(int64(2 * size))
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		f, err := call(b.Context(), l, &Frame{Type: 0x102, Payload: payload, Storages: []*tensor.Storage{s}})
		if err != nil {
			b.Fatal(err)
		}
		f.Release()
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-us")
}

func BenchmarkSync8B(b *testing.B)    { benchmarkEcho(b, 8) }
func BenchmarkEcho1MiB(b *testing.B)  { benchmarkEcho(b, 1<<20) }
func BenchmarkEcho64MiB(b *testing.B) { benchmarkEcho(b, 64<<20) }

func BenchmarkAsync64(b *testing.B) {
	l := echoServer(b)
	s, _ := tensor.NewStorage(8)
	payload := make([]byte, 200)
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := call(context.Background(), l, &Frame{Type: 0x102, Payload: payload, Storages: []*tensor.Storage{s}}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
