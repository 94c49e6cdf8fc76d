// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package tcpstore

import (
	"context"
	"encoding/json"
	"net"
	"sync/atomic"
	"time"

	"github.com/cohort-dist/cohort"
	"github.com/cohort-dist/cohort/internal/store/storedial"
	"github.com/cohort-dist/cohort/internal/store/storeop"
	wire "github.com/cohort-dist/cohort/internal/store/storewire"
	"github.com/cohort-dist/cohort/internal/util/failpoint"
	"github.com/cohort-dist/cohort/internal/util/waitctx"
	"github.com/cohort-dist/cohort/observe"
	"github.com/cohort-dist/cohort/store"
)

// Client is a store on a server: cohort's, or that of PyTorch 1.13 or later. It corresponds to torch.distributed.TCPStore
// with is_master=False.
//
// All methods are safe for concurrent use, and an operation that waits never blocks others. On cohort's own server every
// operation is one round trip on one connection. PyTorch's protocol has no request ids, so on its servers Get is two
// round trips and each wait has its own connection ([WithWaitConns]).
//
// An operation that returns without error has taken effect: a write that PyTorch's protocol does not answer is sent
// together with a request that it does answer, in one round trip. When the connection to cohort's server is lost, operations
// in flight go on over a new one, and none takes effect twice. If it cannot be made in one attempt, and on PyTorch's servers,
// every operation in flight fails with [cohort.PeerLost]; a write may or may not have taken effect. There only the reading
// part of Get is repeated silently. Later operations reconnect, in one attempt: they fail at once with [cohort.Unavailable] while
// the server is unreachable, and work again when the same store is back. A cohort server that was restarted or cleared is a different
// store: every operation fails with [cohort.Replaced] until [Client.Hello] accepts it. PyTorch's servers have no identity;
// there the client uses whatever store it finds.
type Client struct {
	addr    string
	reached net.Addr // by Dial
	config  clientConfig
	back    backend
	timeout atomic.Int64
	closed  atomic.Bool
	life    context.Context //nolint:containedctx // ends when Close begins, and with it what has a connection of its own
	end     context.CancelFunc
	ended   chan struct{} // closed when Close is done
}

// backend runs operations in one dialect. Errors that carry no code of their own mean a lost connection.
type backend interface {
	do(ctx context.Context, limit time.Time, q *request) (wire.Reply, error)
	supports(ctx context.Context, f store.Feature) (bool, error)
	dialect() wire.Dialect
	close(reason error)
}

var (
	_ store.Store           = (*Client)(nil)
	_ store.Appender        = (*Client)(nil)
	_ store.MultiGetter     = (*Client)(nil)
	_ store.MultiSetter     = (*Client)(nil)
	_ store.Queuer          = (*Client)(nil)
	_ store.Lister          = (*Client)(nil)
	_ store.FeatureReporter = (*Client)(nil)
	_ store.FeatureAsker    = (*Client)(nil)
	_ store.Cloner          = (*Client)(nil)
)

// Dial connects to the store at addr ("host:port") and finds out which dialect it speaks. It corresponds to
// torch.distributed.TCPStore(host, port, is_master=False).
//
// If the server does not answer, Dial retries until ctx ends or, if ctx has no deadline, until the timeout of
// [WithTimeout] has passed; the hook of [WithHook] gets an event of kind [EventRetry] for every failed attempt. A host
// name that does not exist fails at once, unless [WithNameRetry] is given. Dial does not count the caller as a worker;
// [Client.JoinWorker] does.
func Dial(ctx context.Context, addr string, opts ...ClientOption) (*Client, error) {
	return dial(ctx, addr, newClientConfig(opts))
}

func dial(ctx context.Context, addr string, config clientConfig) (*Client, error) {
	if err := storedial.CheckAddr(addr); err != nil {
		return nil, err
	}
	bounded, cancel := waitctx.WithTimeout(ctx, config.timeout)
	defer cancel()
	d := config.dialer(addr)
	first, err := d.Connect(bounded, wire.Dialect(config.dialect)) // they have the same numbers
	if err != nil {
		config.hook.Emit(observe.Event{Kind: "store.dial", Rank: cohort.NoRank, Peer: addr, Err: err})
		return nil, err
	}
	c := &Client{addr: addr, reached: first.Conn.RemoteAddr(), config: config, ended: make(chan struct{})}
	c.life, c.end = context.WithCancel(context.Background())
	c.timeout.Store(int64(config.timeout))
	if first.Dialect == wire.Native {
		c.back = newNativeStore(d, first, config.known)
	} else {
		c.back = newTorchStore(d, first, config.waitConns)
	}
	config.hook.Emit(observe.Event{Kind: "store.dial", Rank: cohort.NoRank, Peer: addr, Detail: "dialect " + first.Dialect.String()})
	return c, nil
}

// Addr returns the address that was given to [Dial].
func (c *Client) Addr() string { return c.addr }

// Reached returns the address that [Dial] has connected to, which is one of those that the host name of [Client.Addr] stands for.
func (c *Client) Reached() net.Addr { return c.reached }

// String names the server and the dialect.
func (c *Client) String() string {
	return "store at " + c.addr + " (" + c.Dialect().String() + " dialect)"
}

// Clone implements [store.Cloner]: it dials the same server with the same options. If the server has become another store by then,
// operations of the clone fail with [cohort.Replaced], as those of this client do.
func (c *Client) Clone(ctx context.Context) (store.Store, error) {
	config := c.config
	config.timeout = c.Timeout()
	if native, ok := c.back.(*nativeStore); ok {
		config.dialect, config.known = DialectNative, native.known.get()
	}
	clone, err := dial(ctx, c.addr, config)
	if err != nil {
		return nil, err
	}
	return clone, nil
}

// Dialect returns the dialect that is spoken with the server.
func (c *Client) Dialect() Dialect {
	if c.back == nil {
		return DialectAuto // the zero value is not a client
	}
	return Dialect(c.back.dialect())
}

// Supports implements [store.FeatureReporter]: what the server itself can do. The client may have to ask the server,
// once; if that fails, the answer is no. [Client.AskSupport] tells the two cases apart.
func (c *Client) Supports(f store.Feature) bool {
	has, err := c.AskSupport(context.Background(), f)
	return has && err == nil
}

// AskSupport implements [store.FeatureAsker].
func (c *Client) AskSupport(ctx context.Context, f store.Feature) (bool, error) {
	return c.supports(ctx, f.String(), f)
}

// supports is AskSupport on behalf of an operation.
func (c *Client) supports(ctx context.Context, op string, f store.Feature) (bool, error) {
	var has bool
	var err error = cohort.Closed
	if !c.closed.Load() {
		bounded, cancel := c.withinTimeout(ctx)
		has, err = c.back.supports(bounded, f)
		cancel()
	}
	if err != nil {
		code := codeOr(err, cohort.PeerLost)
		if c.closed.Load() {
			code = cohort.Closed
		}
		return false, &cohort.Error{
			Op: "tcpstore: " + op, Code: code, Rank: cohort.NoRank, Peer: c.addr,
			Detail: storeop.Detail(err), Err: err,
		}
	}
	return has, nil
}

// Timeout implements [store.Store].
func (c *Client) Timeout() time.Duration { return time.Duration(c.timeout.Load()) }

// SetTimeout implements [store.Store].
func (c *Client) SetTimeout(d time.Duration) { c.timeout.Store(int64(d)) }

// Close implements [store.Store]. The server is not affected. Every call returns when all goroutines of the client have
// ended.
func (c *Client) Close() error {
	if c.closed.Swap(true) {
		failpoint.At("tcpstore.close.wait")
		<-c.ended
		return nil
	}
	c.end()
	c.back.close(cohort.Closed)
	close(c.ended)
	return nil
}

// Set implements [store.Store]. It returns when the server has stored the value, unlike PyTorch's.
func (c *Client) Set(ctx context.Context, key string, value []byte) error {
	_, err := c.do(ctx, &request{op: wire.Set, key: key, value: value})
	return err
}

// Get implements [store.Store].
func (c *Client) Get(ctx context.Context, key string) ([]byte, error) {
	r, err := c.do(ctx, &request{op: wire.Get, key: key, wait: true})
	if err != nil {
		return nil, err
	}
	return present(r.Value), nil
}

// Add implements [store.Store]. An empty value is not a number, as in PyTorch's TCPStore.
func (c *Client) Add(ctx context.Context, key string, delta int64) (int64, error) {
	r, err := c.do(ctx, &request{op: wire.Add, key: key, num: delta})
	return r.Num, err
}

// CompareAndSet implements [store.Store].
func (c *Client) CompareAndSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	r, err := c.do(ctx, &request{op: wire.CompareSet, key: key, expected: expected, value: desired})
	if err != nil {
		return nil, err
	}
	return present(r.Value), nil
}

// Check implements [store.Store].
func (c *Client) Check(ctx context.Context, keys ...string) (bool, error) {
	r, err := c.do(ctx, &request{op: wire.Check, keys: list(keys)})
	return err == nil && r.Byte == wire.Ready, err
}

// Wait implements [store.Store].
func (c *Client) Wait(ctx context.Context, keys ...string) error {
	_, err := c.do(ctx, &request{op: wire.Wait, keys: list(keys), wait: true})
	return err
}

// Delete implements [store.Store].
func (c *Client) Delete(ctx context.Context, key string) (bool, error) {
	r, err := c.do(ctx, &request{op: wire.DeleteKey, key: key})
	return r.Num > 0, err
}

// NumKeys implements [store.Store]. The worker counter counts as a key, queues do not.
func (c *Client) NumKeys(ctx context.Context) (int, error) {
	r, err := c.do(ctx, &request{op: wire.NumKeys})
	return int(r.Num), err
}

// Append implements [store.Appender]. On a 1.13 server, which has no append, it is the fallback of [store.Append].
func (c *Client) Append(ctx context.Context, key string, value []byte) error {
	if has, err := c.supports(ctx, "append", store.FeatureAppend); err != nil {
		return err
	} else if !has {
		return store.Append(ctx, coreOf(c), key, value)
	}
	_, err := c.do(ctx, &request{op: wire.Append, key: key, value: value})
	return err
}

// MultiGet implements [store.MultiGetter]. On a 1.13 server it is the fallback of [store.MultiGet].
func (c *Client) MultiGet(ctx context.Context, keys ...string) ([][]byte, error) {
	if has, err := c.supports(ctx, "multi get", store.FeatureMultiGet); err != nil {
		return nil, err
	} else if !has {
		return store.MultiGet(ctx, coreOf(c), keys...)
	}
	if len(keys) == 0 { // PyTorch answers nothing at all to that
		_, err := c.Check(ctx)
		return [][]byte{}, err
	}
	r, err := c.do(ctx, &request{op: wire.MultiGet, keys: keys, wait: true})
	return r.Values, err
}

// MultiSet implements [store.MultiSetter]. On a 1.13 server it is the fallback of [store.MultiSet].
func (c *Client) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	if err := storeop.CheckMultiSet("tcpstore: multi set", keys, values); err != nil {
		return err
	}
	if has, err := c.supports(ctx, "multi set", store.FeatureMultiSet); err != nil {
		return err
	} else if !has {
		return store.MultiSet(ctx, coreOf(c), keys, values)
	}
	_, err := c.do(ctx, &request{op: wire.MultiSet, keys: list(keys), values: values})
	return err
}

// QueuePush implements [store.Queuer]. On a server without queues it is the fallback of [store.QueuePush].
func (c *Client) QueuePush(ctx context.Context, key string, value []byte) error {
	if has, err := c.supports(ctx, "queue push", store.FeatureQueue); err != nil {
		return err
	} else if !has {
		return store.QueuePush(ctx, coreOf(c), key, value)
	}
	_, err := c.do(ctx, &request{op: wire.QueuePush, key: key, value: value})
	return err
}

// QueuePop implements [store.Queuer]. On a server without queues it is the fallback of [store.QueuePop].
func (c *Client) QueuePop(ctx context.Context, key string, wait bool) ([]byte, error) {
	if has, err := c.supports(ctx, "queue pop", store.FeatureQueue); err != nil {
		return nil, err
	} else if !has {
		return store.QueuePop(ctx, coreOf(c), key, wait)
	}
	q := &request{op: wire.QueuePop, key: key, wait: wait}
	r, err := c.do(ctx, q)
	switch {
	case err != nil:
		return nil, err
	case r.Num <= 0:
		return nil, queueEmpty(q, c.addr)
	}
	return present(r.Value), nil
}

// QueueLen implements [store.Queuer]. On a server without queues it is the fallback of [store.QueueLen].
func (c *Client) QueueLen(ctx context.Context, key string) (int, error) {
	if has, err := c.supports(ctx, "queue len", store.FeatureQueue); err != nil {
		return 0, err
	} else if !has {
		return store.QueueLen(ctx, coreOf(c), key)
	}
	r, err := c.do(ctx, &request{op: wire.QueueLen, key: key})
	return int(r.Num), err
}

// ListKeys implements [store.Lister]. PyTorch's servers can list their keys since 2.10; on earlier ones the error is
// [store.ErrNotSupported].
func (c *Client) ListKeys(ctx context.Context) ([]string, error) {
	if has, err := c.supports(ctx, "list keys", store.FeatureListKeys); err != nil {
		return nil, err
	} else if !has {
		return nil, &cohort.Error{
			Op: "tcpstore: list keys", Code: cohort.NotSupported, Rank: cohort.NoRank, Peer: c.addr,
			Detail: "this server cannot list its keys",
		}
	}
	r, err := c.do(ctx, &request{op: wire.ListKeys})
	if err != nil {
		return nil, err
	}
	if c.config.raw {
		return rawKeys(r.Values), nil
	}
	return userKeys(r.Values), nil
}

// JoinWorker counts the caller as a worker that has joined the store and returns how many have, this one included. It
// is what TCPStore's constructor does when it is given a world size; call it once per process.
func (c *Client) JoinWorker(ctx context.Context) (int64, error) {
	r, err := c.do(ctx, &request{op: wire.Add, key: wire.WorkerCountKey, raw: true, num: 1})
	return r.Num, err
}

// Workers returns how many workers have joined. It does not wait.
func (c *Client) Workers(ctx context.Context) (int64, error) {
	r, err := c.do(ctx, &request{op: wire.Check, keys: []string{wire.WorkerCountKey}, raw: true})
	if err != nil || r.Byte != wire.Ready {
		return 0, err
	}
	q := &request{op: wire.Get, key: wire.WorkerCountKey, raw: true, wait: true}
	if r, err = c.do(ctx, q); err != nil {
		return 0, err
	}
	n, err := storeop.ParseCounter(r.Value)
	if err != nil {
		return 0, storeop.CounterError("tcpstore: workers", wire.WorkerCountKey, r.Value, err)
	}
	return n, nil
}

// Stats returns the server's statistics: connections, operations, keys, and who waits for what. Only cohort's server has
// them.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	if err := c.nativeOnly("stats", "statistics"); err != nil {
		return Stats{}, err
	}
	r, err := c.do(ctx, &request{op: wire.Stats})
	if err != nil {
		return Stats{}, err
	}
	var stats Stats
	if err := json.Unmarshal(r.Value, &stats); err != nil {
		return Stats{}, cohort.Newf("tcpstore: stats", cohort.Protocol, "the server's statistics cannot be read: %w", err)
	}
	return stats, nil
}

// do checks an operation, gives it to the backend, and completes its error, with an event before and after that if there is a hook.
func (c *Client) do(ctx context.Context, q *request) (r wire.Reply, err error) {
	if c.config.hook != nil {
		defer c.observe(ctx, q, &r, &err)()
	}
	q.raw = q.raw || c.config.raw
	if err = q.check(&c.config.limits); err != nil {
		return r, err
	}
	if c.closed.Load() {
		return r, c.explain(q, cohort.Closed)
	}
	if ctx.Err() != nil {
		return r, c.explain(q, cohort.FromContext(ctx, "tcpstore"))
	}
	if r, err = c.back.do(ctx, c.limitOf(ctx, q.wait), q); err != nil {
		return wire.Reply{}, c.explain(q, err)
	}
	return r, nil
}

// observe sends the hook the event before an operation, and returns what sends it the one after it.
func (c *Client) observe(ctx context.Context, q *request, r *wire.Reply, err *error) func() {
	event := observe.Event{
		Time: time.Now(), Kind: observe.Kind("store." + q.op.String()), Phase: observe.Begin, Rank: cohort.NoRank,
		Peer: c.addr, Key: q.subject(), Bytes: int64(len(q.value)),
	}
	event.SetTrace(observe.Trace(ctx))
	c.config.hook.Emit(event)
	return func() {
		start := event.Time
		event.Time, event.Phase, event.Err = time.Now(), observe.End, *err
		event.Dur = event.Time.Sub(start)
		event.Bytes += int64(len(r.Value))
		c.config.hook.Emit(event)
	}
}

// list replaces a nil list of keys by an empty one.
func list(keys []string) []string {
	if keys == nil {
		return []string{}
	}
	return keys
}

// coreOf hides the optional operations of a client, so that the fallbacks of package store do not ask for them again.
func coreOf(c *Client) store.Store { return struct{ store.Store }{c} }
