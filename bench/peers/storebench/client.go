package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"
	"time"
)

type opcodes struct{ validate, set, get, add, check, wait, ping int }

var codes = map[string]opcodes{
	"pt113": {validate: -1, set: 0, get: 2, add: 3, check: 4, wait: 5, ping: -1},
	"pt26":  {validate: 0, set: 1, get: 3, add: 4, check: 5, wait: 6, ping: 13},
}

const validateMagic = 0x3C85F7CE

// rawConn does plain blocking read(2)/write(2), past Go's network poller. It
// takes the client's own wake-up cost out of single-client latencies.
type rawConn struct{ fd int }

func (r rawConn) Read(b []byte) (int, error) {
	for {
		n, err := syscall.Read(r.fd, b)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return 0, err
		}
		if n == 0 {
			return 0, io.EOF
		}
		return n, nil
	}
}

func (r rawConn) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := syscall.Write(r.fd, b[done:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}
func (r rawConn) Close() error { return syscall.Close(r.fd) }

type client struct {
	c     io.ReadWriteCloser
	r     *bufio.Reader
	b     []byte
	redis bool
	op    opcodes
	tmp   [8]byte
}

func dial(addr, proto string, raw bool) (*client, error) {
	nc, err := net.DialTimeout("tcp", addr, 60*time.Second)
	if err != nil {
		return nil, err
	}
	tc := nc.(*net.TCPConn)
	_ = tc.SetNoDelay(true)
	_ = tc.SetLinger(0) // leave no TIME_WAIT behind: storms run many times
	var c io.ReadWriteCloser = tc
	if raw {
		f, err := tc.File() // a dup, in blocking mode
		if err != nil {
			return nil, err
		}
		fd := int(f.Fd())
		if err := syscall.SetNonblock(fd, false); err != nil {
			return nil, err
		}
		nfd, err := syscall.Dup(fd)
		if err != nil {
			return nil, err
		}
		f.Close()
		tc.Close()
		c = rawConn{nfd}
	}
	cl := &client{c: c, r: bufio.NewReaderSize(c, 4096), redis: proto == "redis", op: codes[proto]}
	if proto == "pt26" { // the real client validates, then pings and waits
		b := []byte{byte(cl.op.validate)}
		b = binary.LittleEndian.AppendUint32(b, validateMagic)
		b = append(b, byte(cl.op.ping))
		b = binary.LittleEndian.AppendUint32(b, 4242)
		if _, err := c.Write(b); err != nil {
			c.Close()
			return nil, err
		}
		var n [4]byte
		if _, err := io.ReadFull(cl.r, n[:]); err != nil {
			c.Close()
			return nil, err
		}
		if binary.LittleEndian.Uint32(n[:]) != 4242 {
			c.Close()
			return nil, errors.New("bad ping reply")
		}
	}
	return cl, nil
}

func (c *client) begin()        { c.b = c.b[:0] }
func (c *client) flush() error  { _, err := c.c.Write(c.b); return err }
func (c *client) byte(v int)    { c.b = append(c.b, byte(v)) }
func (c *client) u64(v uint64)  { c.b = binary.LittleEndian.AppendUint64(c.b, v) }
func (c *client) str(s string)  { c.u64(uint64(len(s))); c.b = append(c.b, s...) }
func (c *client) resp(a ...any) { c.b = appendRESP(c.b, a...) }

func appendRESP(b []byte, args ...any) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(len(args)), 10)
	b = append(b, '\r', '\n')
	for _, a := range args {
		s, ok := a.(string)
		if !ok {
			s = string(a.([]byte))
		}
		b = append(b, '$')
		b = strconv.AppendInt(b, int64(len(s)), 10)
		b = append(b, '\r', '\n')
		b = append(b, s...)
		b = append(b, '\r', '\n')
	}
	return b
}

// readRESP reads one reply of any type and returns its integer or its length.
func (c *client) readRESP() (int64, error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	switch line[0] {
	case '+':
		return 0, nil
	case '-':
		return 0, errors.New(string(line))
	case ':':
		return strconv.ParseInt(string(line[1:len(line)-2]), 10, 64)
	case '$':
		n, err := strconv.ParseInt(string(line[1:len(line)-2]), 10, 64)
		if err != nil || n < 0 {
			return -1, err
		}
		_, err = c.r.Discard(int(n) + 2)
		return n, err
	case '*':
		n, err := strconv.ParseInt(string(line[1:len(line)-2]), 10, 64)
		for i := int64(0); i < n && err == nil; i++ {
			_, err = c.readRESP()
		}
		return n, err
	}
	return 0, fmt.Errorf("bad reply %q", line)
}

func (c *client) one() (byte, error) { return c.r.ReadByte() }

func (c *client) i64() (int64, error) {
	if _, err := io.ReadFull(c.r, c.tmp[:]); err != nil {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint64(c.tmp[:])), nil
}

func (c *client) putSet(key string, val []byte) {
	if c.redis {
		c.resp("SET", key, val)
		return
	}
	c.byte(c.op.set)
	c.str(key)
	c.u64(uint64(len(val)))
	c.b = append(c.b, val...)
}

func (c *client) putKeys(op int, key string) { c.byte(op); c.u64(1); c.str(key) }

func (c *client) set(key string, val []byte) error { return c.setN(key, val, 1) }

func (c *client) setN(key string, val []byte, n int) error {
	c.begin()
	for i := 0; i < n; i++ {
		c.putSet(key, val)
	}
	if !c.redis {
		c.putKeys(c.op.check, key)
	}
	if err := c.flush(); err != nil {
		return err
	}
	if c.redis {
		for i := 0; i < n; i++ {
			if _, err := c.readRESP(); err != nil {
				return err
			}
		}
		return nil
	}
	b, err := c.one()
	if err == nil && b != 0 {
		err = fmt.Errorf("check after set: %d", b)
	}
	return err
}

func (c *client) check(key string) error {
	c.begin()
	if c.redis {
		c.resp("EXISTS", key)
		if err := c.flush(); err != nil {
			return err
		}
		_, err := c.readRESP()
		return err
	}
	c.putKeys(c.op.check, key)
	if err := c.flush(); err != nil {
		return err
	}
	_, err := c.one()
	return err
}

func (c *client) wait(key string) error {
	c.begin()
	c.putKeys(c.op.wait, key)
	if err := c.flush(); err != nil {
		return err
	}
	_, err := c.one()
	return err
}

func (c *client) rawget(key string) error {
	c.begin()
	if c.redis {
		c.resp("GET", key)
	} else {
		c.byte(c.op.get)
		c.str(key)
	}
	if err := c.flush(); err != nil {
		return err
	}
	if c.redis {
		_, err := c.readRESP()
		return err
	}
	n, err := c.i64()
	if err != nil {
		return err
	}
	_, err = c.r.Discard(int(n))
	return err
}

func (c *client) get(key string) error {
	if !c.redis {
		if err := c.wait(key); err != nil {
			return err
		}
	}
	return c.rawget(key)
}

func (c *client) add(key string, d int64) (int64, error) {
	c.begin()
	if c.redis {
		c.resp("INCRBY", key, strconv.FormatInt(d, 10))
		if err := c.flush(); err != nil {
			return 0, err
		}
		return c.readRESP()
	}
	c.byte(c.op.add)
	c.str(key)
	c.u64(uint64(d))
	if err := c.flush(); err != nil {
		return 0, err
	}
	return c.i64()
}

func (c *client) do(op, key string, val []byte) (n int, err error) {
	switch op {
	case "set":
		return 1, c.set(key, val)
	case "setstream":
		return 100, c.setN(key, val, 100)
	case "get":
		return 1, c.get(key)
	case "rawget":
		return 1, c.rawget(key)
	case "check":
		return 1, c.check(key)
	case "add":
		_, err = c.add("bench/counter", 1)
		return 1, err
	}
	return 0, fmt.Errorf("unknown op %q", op)
}
