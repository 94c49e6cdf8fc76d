// Copyright The cohort Authors
// SPDX-License-Identifier: Apache-2.0

package repolint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// pointed are the packages in which every site has a point of its own, see package moment. Of store/tcpstore it is the client.
var pointed = []string{
	"store/tcpstore", "internal/store/storedial",
	"group", "internal/group/transport", "internal/group/bootstrap", "internal/group/assemble", "internal/group/native", "internal/group/native/nativetcp", "internal/group/native/lanes", "internal/group/shm", "internal/group/gloo",
	"rpc", "internal/rpc/rpcsession", "internal/rpc/rpcclient", "internal/rpc/rpcserver", "internal/rpc/rpcref", "internal/rpc/rpcslots", "internal/rpc/rpcworld",
	"internal/rpc/cohortwire", "internal/rpc/tensorpipe",
	"autograd", "autograd/distautograd", "autograd/ddp",
}

// TestPoints: a call of failpoint.At stands before every lock, wait (on an epoll instance or a futex, too), read, write and hand-over of the packages above, with no other
// site between the two. A function that only looks, that is, locks and returns something, needs none. Another site that can have none,
// mostly because it is reached under another lock, says so in its line:
// "// no point: why".
func TestPoints(t *testing.T) {
	t.Parallel()
	found := 0
	for _, s := range sources(t) {
		if s.test || !slices.Contains(pointed, s.pkg) || s.pkg == "store/tcpstore" && serverFile(path.Base(s.file)) {
			continue
		}
		missing, sites := pointless(t, s.file, nil)
		found += sites
		for _, m := range missing {
			t.Error(m)
		}
	}
	if found < 500 {
		t.Errorf("only %d sites were found", found)
	}
}

// serverFile reports whether a file of store/tcpstore is the server's.
func serverFile(name string) bool {
	return strings.HasPrefix(name, "server") || name == "identity.go" || name == "string.go"
}

// TestPointless: the rule above finds what it is for.
func TestPointless(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]int{
		`failpoint.At("p"); mu.Lock()`:              0,
		`mu.Lock()`:                                 1,
		`mu.RLock()`:                                1,
		`failpoint.At("p"); a.Lock(); b.Lock()`:     1,
		`mu.Lock() // no point: under another lock`: 0,
		`failpoint.At("p"); func() { mu.Lock() }()`: 1,
		`<-done`:                                1,
		`failpoint.At("p"); x := <-done; _ = x`: 0,
		`ch <- 1`:                               1,
		`select { case <-done: case <-ctx.Done(): }`:            1,
		`select { case <-done: default: }`:                      0, // looks
		`select { case ch <- 1: default: }`:                     1, // hands over
		`select { case <-done: default: }; all.Wait()`:          1,
		`failpoint.At("p"); select { case <-a: mu.Lock() }`:     1,
		`_, _ = c.conn.Read(buf); _, _ = io.ReadFull(b,c)`:      1,
		`_, _ = io.ReadFull(conn, buf)`:                         1,
		`c.Pipe.Send(ctx, m)`:                                   1,
		`conn.SetDeadline(t)`:                                   0,
		`mu.Lock(); defer mu.Unlock(); return x`:                0, // looks
		`mu.Lock(); defer mu.Unlock(); x++; return x`:           1,
		`_, _ = ln.Accept()`:                                    1,
		`epollSleep(m.ep, m.events[:], true)`:                   1,
		`epollRaw(m.ep, m.events[:], ms)`:                       1,
		`epollRaw(m.ep, m.events[:], 0)`:                        0, // looks
		`epollLook(m.ep, m.events[:])`:                          0,
		`unix.EpollWait(ep, ready[:], ms)`:                      1,
		`unix.EpollWait(ep, ready[:], 0)`:                       0,
		`unix.Poll(set, -1)`:                                    1,
		`unix.Poll(set, 0)`:                                     0,
		`unix.Ppoll(fds[:], &limit, nil)`:                       1,
		`unix.Syscall6(unix.SYS_FUTEX, a, b, c, d, 0, 0)`:       1,
		`unix.Syscall6(unix.SYS_EPOLL_PWAIT, a, b)`:             1,
		`unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, a, b)`:          0, // whoever makes it wait is known by name
		`futexWait(word, v, limit, true); futexWake(word)`:      2,
		`g.raw.Read(func(fd uintptr) bool { mu.Lock() })`:       2,
		`failpoint.At("p"); futexWait(word, v, limit, true)`:    0,
		`failpoint.At("p"); epollSleep(ep, e, true); mu.Lock()`: 1,
	} {
		missing, _ := pointless(t, "code.go", []byte("package p\nfunc f() {\n"+code+"\n}\n"))
		if len(missing) != want {
			t.Errorf("%s: %d sites without a point, want %d: %v", code, len(missing), want, missing)
		}
	}
}

// pointless returns the sites of a file that have no point, and how many it has.
func pointless(t *testing.T, file string, code []byte) (missing []string, sites int) {
	t.Helper()
	fset := token.NewFileSet()
	from := filepath.Join("..", "..", file)
	var src any
	if code != nil {
		src = code
	}
	f, err := parser.ParseFile(fset, from, src, parser.SkipObjectResolution|parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	excused := map[int]bool{} // by line
	for _, group := range f.Comments {
		for _, c := range group.List {
			if _, why, ok := strings.Cut(c.Text, "// no point: "); ok && why != "" {
				excused[fset.Position(c.Pos()).Line] = true
			}
		}
	}
	var function func(body *ast.BlockStmt)
	function = func(body *ast.BlockStmt) {
		if looks(body) {
			return
		}
		pointed := false // the last thing in this function was a point
		inSelect := map[ast.Node]bool{}
		ast.Inspect(body, func(n ast.Node) bool {
			if lit, ok := n.(*ast.FuncLit); ok {
				function(lit.Body)
				return false
			}
			if s, ok := n.(*ast.SelectStmt); ok {
				for _, clause := range s.Body.List {
					if comm := clause.(*ast.CommClause).Comm; comm != nil { //nolint:errcheck,forcetypeassert // selects have no other clauses
						ast.Inspect(comm, func(n ast.Node) bool { inSelect[n] = true; return true })
					}
				}
			}
			if isPoint(n) {
				pointed = true
				return true
			}
			what := site(n)
			if what == "" || inSelect[n] && what != "call" {
				return true
			}
			sites++
			at := fset.Position(n.Pos())
			if !pointed && !excused[at.Line] {
				missing = append(missing, fmt.Sprintf("%s:%d: a %s without a point before it", file, at.Line, what))
			}
			pointed = false
			return true
		})
	}
	for _, decl := range f.Decls {
		if d, ok := decl.(*ast.FuncDecl); ok && d.Body != nil {
			function(d.Body)
		}
	}
	return missing, sites
}

func isPoint(n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "At" && lastName(sel.X) == "failpoint"
}

// wires are what is read from and written to, by the names that they have in the packages above.
var wires = []string{"conn", "Conn", "Pipe", "Link", "ep", "ln", "Listener", "nc", "br", "src", "raw"}

// site says what of the things that a point stands before a node is.
func site(n ast.Node) string {
	switch n := n.(type) {
	case *ast.UnaryExpr:
		if n.Op == token.ARROW {
			return "receive"
		}
	case *ast.SendStmt:
		return "send"
	case *ast.SelectStmt:
		return selects(n)
	case *ast.CallExpr:
		return calls(n)
	}
	return ""
}

// selects knows a select that waits or hands something over, from one that only looks.
func selects(s *ast.SelectStmt) string {
	waits, sends := true, false
	for _, clause := range s.Body.List {
		switch clause.(*ast.CommClause).Comm.(type) { //nolint:forcetypeassert // selects have no other clauses
		case nil:
			waits = false
		case *ast.SendStmt:
			sends = true
		}
	}
	if waits || sends {
		return "select"
	}
	return ""
}

// calls knows locks, waits, reads and writes.
func calls(c *ast.CallExpr) string {
	if name := kernelWait(c); name != "" {
		return name
	}
	sel, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	switch name := sel.Sel.Name; name {
	case "Lock", "RLock", "Wait", "AcceptUnix":
		if len(c.Args) == 0 {
			return name
		}
	case "Read", "Write", "Recv", "Send", "Post", "Request", "Await", "Accept":
		if name == "Accept" && len(c.Args) == 0 || slices.Contains(wires, lastName(sel.X)) {
			return name
		}
	case "ReadFull", "Copy", "ReadAll":
		if lastName(sel.X) == "io" && slices.ContainsFunc(c.Args, func(a ast.Expr) bool { return slices.Contains(wires, lastName(a)) }) {
			return name
		}
	}
	return ""
}

// kernelWait knows the waits that the Go runtime does not see, on an epoll instance or a futex, and the wake-up of those who sleep on a futex.
// A look at the sockets, with a time of 0, is none.
func kernelWait(c *ast.CallExpr) string {
	if len(c.Args) == 0 {
		return ""
	}
	last, _ := c.Args[len(c.Args)-1].(*ast.BasicLit)
	switch name := lastName(c.Fun); name {
	case "futexWait", "futexWake", "Ppoll", "epollSleep":
		return name
	case "epollRaw", "EpollWait", "Poll":
		if last == nil || last.Value != "0" {
			return name
		}
	case "Syscall", "Syscall6":
		if number := lastName(c.Args[0]); strings.HasPrefix(number, "SYS_EPOLL_") || number == "SYS_FUTEX" {
			return number
		}
	}
	return ""
}

// lastName is the name of a variable or of a field.
func lastName(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}

// looks knows a function that locks, returns something and does nothing else: whatever happens in it could as well happen before it.
func looks(body *ast.BlockStmt) bool {
	if len(body.List) != 3 {
		return false
	}
	lock, ok := body.List[0].(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := lock.X.(*ast.CallExpr)
	if !ok || calls(call) != "Lock" && calls(call) != "RLock" {
		return false
	}
	_, unlocks := body.List[1].(*ast.DeferStmt)
	_, returns := body.List[2].(*ast.ReturnStmt)
	return unlocks && returns
}
