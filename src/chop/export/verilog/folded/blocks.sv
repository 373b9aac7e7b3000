// Blocks of folded networks. A beat moves when valid and ready are both high; element i of a beat is
// in bits [i * width +: width]; pixels come row by row, and the channels of a pixel together.
/* verilator lint_off DECLFILENAME */
/* verilator lint_off WIDTH */
/* verilator lint_off UNUSEDSIGNAL */
/* verilator lint_off UNUSEDPARAM */
/* verilator lint_off UNSIGNED */
/* verilator lint_off CMPCONST */
`default_nettype none

// Two registers, so that no path leads from one side to the other.
module chop_slice #(parameter B = 8) (
  input wire clk, input wire reset,
  input wire [B-1:0] s_data, input wire s_valid, output wire s_ready,
  output reg [B-1:0] m_data, output reg m_valid, input wire m_ready
);
  reg [B-1:0] spare;
  reg full;
  assign s_ready = ~full;
  always @(posedge clk) begin
    if (~m_valid | m_ready) begin
      m_data <= full ? spare : s_data;
      m_valid <= full | s_valid;
      full <= 1'b0;
    end else if (s_valid & ~full) begin
      spare <= s_data;
      full <= 1'b1;
    end
    if (reset) begin m_valid <= 1'b0; full <= 1'b0; end
  end
endmodule

// A memory with a register behind it. What is written is never read in the same cycle.
module chop_ram #(parameter B = 8, parameter A = 4, parameter BLOCK = 0) (
  input wire clk, input wire put, input wire [A-1:0] to, input wire [B-1:0] data,
  input wire take, input wire [A-1:0] from, output reg [B-1:0] found
);
  generate if (BLOCK != 0) begin : block
    (* ram_style = "block", no_rw_check *) reg [B-1:0] memory [0:(1 << A) - 1];
    always @(posedge clk) begin
      if (put) memory[to] <= data;
      if (take) found <= memory[from];
    end
  end else begin : distributed
    (* ram_style = "distributed", no_rw_check *) reg [B-1:0] memory [0:(1 << A) - 1];
    always @(posedge clk) begin
      if (put) memory[to] <= data;
      if (take) found <= memory[from];
    end
  end endgenerate
endmodule

// A queue of 2**A + 1 beats in a memory.
module chop_queue #(parameter B = 8, parameter A = 4, parameter BLOCK = 0) (
  input wire clk, input wire reset,
  input wire [B-1:0] s_data, input wire s_valid, output wire s_ready,
  output wire [B-1:0] m_data, output reg m_valid, input wire m_ready
);
  reg [A-1:0] head, tail;
  reg [A:0] held;
  wire put = s_valid & s_ready, take = held != 0 & (~m_valid | m_ready);
  assign s_ready = ~held[A];
  chop_ram #(.B(B), .A(A), .BLOCK(BLOCK)) ram (.clk(clk), .put(put), .to(tail), .data(s_data),
    .take(take), .from(head), .found(m_data));
  always @(posedge clk) begin
    tail <= tail + put;
    head <= head + take;
    held <= held + put - take;
    if (~m_valid | m_ready) m_valid <= take;
    if (reset) begin head <= 0; tail <= 0; held <= 0; m_valid <= 1'b0; end
  end
endmodule

// N narrow beats as a wide one.
module chop_widen #(parameter B = 8, parameter N = 2) (
  input wire clk, input wire reset,
  input wire [B-1:0] s_data, input wire s_valid, output wire s_ready,
  output wire [B*N-1:0] m_data, output wire m_valid, input wire m_ready
);
  localparam C = $clog2(N + 1);
  reg [B*N-1:0] held;
  reg [C-1:0] count;
  assign m_data = held;
  assign m_valid = count == N;
  assign s_ready = ~m_valid | m_ready;
  always @(posedge clk) begin
    if (s_valid & s_ready) held <= {s_data, held[B*N-1:B]};
    if (m_valid & m_ready) count <= {{(C-1){1'b0}}, s_valid};
    else if (s_valid & s_ready) count <= count + 1'b1;
    if (reset) count <= 0;
  end
endmodule

// A wide beat as N narrow ones.
module chop_narrow #(parameter B = 8, parameter N = 2) (
  input wire clk, input wire reset,
  input wire [B*N-1:0] s_data, input wire s_valid, output wire s_ready,
  output wire [B-1:0] m_data, output wire m_valid, input wire m_ready
);
  localparam C = $clog2(N + 1);
  reg [B*N-1:0] held;
  reg [C-1:0] count;
  assign m_data = held[B-1:0];
  assign m_valid = count != 0;
  assign s_ready = count == 0 | (count == 1 & m_ready);
  always @(posedge clk) begin
    if (s_valid & s_ready) begin held <= s_data; count <= N; end
    else if (m_valid & m_ready) begin
      held <= {{B{1'b0}}, held[B*N-1:B]};
      count <= count - 1'b1;
    end
    if (reset) count <= 0;
  end
endmodule

// The windows over an image from a buffer of ROWS rows, FILL around the image. For each place of
// the result: REP times all taps with CF beats each, or for each of CF beats all taps if OUTER.
module chop_window #(
  parameter B = 8, parameter CF = 1, parameter H = 4, parameter W = 4, parameter OH = 4,
  parameter OW = 4, parameter KH = 3, parameter KW = 3, parameter SH = 1, parameter SW = 1,
  parameter PH = 1, parameter PW = 1, parameter DH = 1, parameter DW = 1, parameter REP = 1,
  parameter OUTER = 0, parameter ROWS = 4, parameter BLOCK = 0, parameter [B-1:0] FILL = 0
) (
  input wire clk, input wire reset,
  input wire [B-1:0] s_data, input wire s_valid, output wire s_ready,
  output wire [B-1:0] m_data, output reg m_valid, input wire m_ready
);
  localparam P = W*CF > 1 ? $clog2(W*CF) : 1, S = ROWS > 1 ? $clog2(ROWS) : 1;
  localparam X = $clog2((OW*SW + KW*DW + PW + W)*CF + 1) + 1;
  localparam Y = $clog2(OH*SH + KH*DH + PH + H + ROWS + 1) + 1;
  localparam NO = $clog2(OH + 1), NP = $clog2(OW + 1), NR = $clog2(REP + 1);
  localparam NY = $clog2(KH + 1), NX = $clog2(KW + 1), NC = $clog2(CF + 1);
  // Rows come in: row r of an image is in slot `base` + r of the buffer, whose ROWS are a power of two.
  reg [P-1:0] column;
  reg [S-1:0] slot, base;
  reg [S:0] rows;
  reg full;
  wire put = s_valid & ~full, row_in = put & column == W*CF - 1;
  assign s_ready = ~full;
  // Windows go out. `first` is the oldest row that is there, `top` that of the window's first tap,
  // `bottom` that of its last; `came` counts the rows of this image, and of the next, so far.
  reg signed [Y-1:0] first, came, top, bottom, row;  // and `row` is that of the tap
  reg signed [X-1:0] left, across;  // the beat of the first channels of a window's first tap, of the tap
  reg [NO-1:0] oy;
  reg [NP-1:0] ox;
  reg [NR-1:0] rep;
  reg [NY-1:0] ky;
  reg [NX-1:0] kx;
  reg [NC-1:0] cf;
  reg ended;  // no window of this image is left, only rows that come or go
  wire there = ~ended & (came > bottom | came >= H);
  wire image_out = first == H - 1;
  wire drop = rows != 0 & (ended | (first < top & ~image_out));
  wire go = ~m_valid | m_ready;
  wire step = there & go;
  wire signed [X-1:0] place = across + $signed({1'b0, cf});
  wire in_image = row >= 0 & row < H & across >= 0 & across < W*CF;
  wire [S-1:0] from = base + row[S-1:0];
  wire [B-1:0] found;
  reg outside;
  chop_ram #(.B(B), .A(S + P), .BLOCK(BLOCK)) ram (.clk(clk), .put(put), .to({slot, column}),
    .data(s_data), .take(go), .from({from, place[P-1:0]}), .found(found));
  assign m_data = outside ? FILL : found;
  wire cf_end = cf == CF - 1, kx_end = kx == KW - 1, taps_end = kx_end & ky == KH - 1;
  wire place_end = cf_end & taps_end & (OUTER != 0 | rep == REP - 1);
  wire next_tap = OUTER != 0 | cf_end, line_end = ox == OW - 1, image_end = oy == OH - 1;
  wire [S:0] left_over = rows + row_in - drop;
  always @(posedge clk) begin
    if (put) begin
      column <= row_in ? 0 : column + 1'b1;
    end
    if (row_in) slot <= slot + 1'b1;
    rows <= left_over;
    full <= left_over == ROWS;
    came <= came + row_in - (drop & image_out ? H : 0);
    if (drop) begin
      first <= image_out ? 0 : first + 1;
      if (image_out) begin ended <= 1'b0; base <= base + H; end
    end
    if (go) begin
      m_valid <= there;
      outside <= ~in_image;
    end
    if (step) begin
      if (OUTER == 0 | taps_end) cf <= cf_end ? 0 : cf + 1'b1;
      if (OUTER == 0 & cf_end & taps_end) rep <= rep == REP - 1 ? 0 : rep + 1'b1;
      if (next_tap) begin
        kx <= kx_end ? 0 : kx + 1'b1;
        across <= kx_end ? left : across + DW*CF;
      end
      if (next_tap & kx_end) begin
        ky <= taps_end ? 0 : ky + 1'b1;
        row <= taps_end ? top : row + DH;
      end
      if (place_end) begin
        ox <= line_end ? 0 : ox + 1'b1;
        left <= line_end ? -(PW*CF) : left + SW*CF;
        across <= line_end ? -(PW*CF) : left + SW*CF;
      end
      if (place_end & line_end) begin
        oy <= image_end ? 0 : oy + 1'b1;
        top <= image_end ? -PH : top + SH;
        row <= image_end ? -PH : top + SH;
        bottom <= image_end ? (KH - 1)*DH - PH : bottom + SH;
        if (image_end) ended <= 1'b1;
      end
    end
    if (reset) begin
      column <= 0; slot <= 0; base <= 0; rows <= 0; full <= 1'b0; first <= 0; came <= 0;
      ended <= 1'b0; m_valid <= 1'b0; oy <= 0; ox <= 0; rep <= 0; ky <= 0; kx <= 0; cf <= 0;
      left <= -(PW*CF); across <= -(PW*CF); top <= -PH; row <= -PH; bottom <= (KH - 1)*DH - PH;
    end
  end
endmodule

// All taps of each window at once, each window REP times: rows above are in a memory, columns of the
// window in registers, and each step takes a pixel, or FILL around the image, into them.
module chop_taps #(
  parameter L = 1, parameter XW = 8, parameter H = 4, parameter W = 4, parameter OH = 4,
  parameter OW = 4, parameter KH = 3, parameter KW = 3, parameter SH = 1, parameter SW = 1,
  parameter PH = 1, parameter PW = 1, parameter DH = 1, parameter DW = 1, parameter REP = 1,
  parameter BLOCK = 0, parameter [L*XW-1:0] FILL = 0
) (
  input wire clk, input wire reset,
  input wire [L*XW-1:0] s_data, input wire s_valid, output wire s_ready,
  output wire [L*KH*KW*XW-1:0] m_data, output reg m_valid, input wire m_ready
);
  localparam B = L*XW, TH = (KH - 1)*DH + 1, TW = (KW - 1)*DW + 1;  // rows and columns of a window
  localparam RH = (OH - 1)*SH + TH, RW = (OW - 1)*SW + TW;  // of all windows
  localparam VH = RH > PH + H ? RH : PH + H, VW = RW > PW + W ? RW : PW + W;
  localparam NY = $clog2(VH + 1), NX = $clog2(VW + 1), A = VW > 1 ? $clog2(VW) : 1;
  localparam NR = $clog2(REP + 1), FY = $clog2(SH + 1), FX = $clog2(SW + 1);
  reg [NY-1:0] y;
  reg [NX-1:0] x;
  reg [FY-1:0] fy;  // rows until the next window begins, from its last row
  reg [FX-1:0] fx;
  reg [NR-1:0] rep;
  wire rep_end = rep == REP - 1, x_end = x == VW - 1, y_end = y == VH - 1;
  wire in_image = y >= PH & y < PH + H & x >= PW & x < PW + W;
  wire free = ~m_valid | (m_ready & rep_end);
  wire step = free & (~in_image | s_valid);
  wire whole = y >= TH - 1 & y < RH & fy == 0 & x >= TW - 1 & x < RW & fx == 0;
  wire [B-1:0] pixel = in_image ? s_data : FILL;
  wire [TH*B-1:0] column;
  reg [TW*TH*B-1:0] held;  // the oldest column first, of each the oldest row
  assign s_ready = free & in_image;
  generate if (TH > 1) begin : rows
    wire [(TH-1)*B-1:0] above;
    chop_ram #(.B((TH-1)*B), .A(A), .BLOCK(BLOCK)) ram (.clk(clk), .put(step), .to(x[A-1:0]),
      .data(column[TH*B-1:B]), .take(step | reset), .found(above),
      .from(reset | x_end ? {A{1'b0}} : x[A-1:0] + 1'b1));
    assign column = {pixel, above};
  end else begin : row
    assign column = pixel;
  end
  if (TW > 1) begin : columns
    always @(posedge clk) if (step) held <= {column, held[TW*TH*B-1:TH*B]};
  end else begin : single
    always @(posedge clk) if (step) held <= column;
  end endgenerate
  genvar c, i, j;
  generate for (c = 0; c < L; c = c + 1) begin : channel
    for (i = 0; i < KH; i = i + 1) begin : down
      for (j = 0; j < KW; j = j + 1) begin : across
        assign m_data[((c*KH + i)*KW + j)*XW +: XW] = held[(j*DW*TH + i*DH)*B + c*XW +: XW];
      end
    end
  end endgenerate
  always @(posedge clk) begin
    if (free) m_valid <= step & whole;
    if (m_valid & m_ready) rep <= rep_end ? 0 : rep + 1'b1;
    if (step) begin
      x <= x_end ? 0 : x + 1'b1;
      if (x_end | x < TW - 1) fx <= 0;
      else fx <= fx == SW - 1 ? 0 : fx + 1'b1;
      if (x_end) begin
        y <= y_end ? 0 : y + 1'b1;
        if (y_end | y < TH - 1) fy <= 0;
        else fy <= fy == SH - 1 ? 0 : fy + 1'b1;
      end
    end
    if (reset) begin x <= 0; y <= 0; fx <= 0; fy <= 0; rep <= 0; m_valid <= 1'b0; end
  end
endmodule

// The largest or the sum of the T taps of each element of a beat.
module chop_pool_taps #(
  parameter L = 1, parameter T = 4, parameter XW = 4, parameter XS = 0, parameter AW = 4,
  parameter MAX = 1
) (
  input wire clk, input wire reset,
  input wire [L*T*XW-1:0] s_data, input wire s_valid, output wire s_ready,
  output reg [L*AW-1:0] m_data, output reg m_valid, input wire m_ready
);
  wire go = ~m_valid | m_ready;
  assign s_ready = go;
  genvar g, t;
  generate for (g = 0; g < L; g = g + 1) begin : lane
    wire [T*(AW+1)-1:0] taps;
    wire [AW:0] all;
    for (t = 0; t < T; t = t + 1) begin : tap
      wire [XW-1:0] code = s_data[(g*T + t)*XW +: XW];
      assign taps[t*(AW+1) +: AW + 1] = {{(AW + 1 - XW){XS != 0 & code[XW-1]}}, code};
    end
    chop_reduce #(.N(T), .B(AW + 1), .MAX(MAX)) tree (.x(taps), .y(all));
    always @(posedge clk) if (go) m_data[g*AW +: AW] <= all[AW-1:0];
  end endgenerate
  always @(posedge clk) if (reset) m_valid <= 1'b0; else if (go) m_valid <= s_valid;
endmodule

// The largest or the sum of N signed numbers of B bits, which has no more bits.
module chop_reduce #(parameter N = 2, parameter B = 8, parameter MAX = 1) (
  input wire [N*B-1:0] x, output wire [B-1:0] y
);
  generate if (N == 1) begin : one
    assign y = x;
  end else begin : two
    localparam M = N / 2;
    wire signed [B-1:0] a, b;
    chop_reduce #(.N(M), .B(B), .MAX(MAX)) low (.x(x[M*B-1:0]), .y(a));
    chop_reduce #(.N(N - M), .B(B), .MAX(MAX)) high (.x(x[N*B-1:M*B]), .y(b));
    if (MAX != 0) begin : larger
      assign y = a > b ? a : b;
    end else begin : sum
      assign y = a + b;
    end
  end endgenerate
endmodule

// PE sums of SF beats of SIMD products with constants, for NF groups of results in turn. With LANES
// each SIMD elements of a beat have a sum of their own. The memories of constants are beside it.
module chop_matrix #(
  parameter PE = 2, parameter SIMD = 2, parameter XW = 4, parameter XS = 0, parameter WW = 4,
  parameter AW = 16, parameter SF = 4, parameter NF = 2, parameter LANES = 0, parameter A = 3,
  parameter N = 1, parameter IN = LANES != 0 ? PE*SIMD : SIMD, parameter PER = SIMD
) (
  input wire clk, input wire reset, output wire go,
  output reg [A-1:0] at, input wire [PE*PER*WW-1:0] weights,
  output reg [N-1:0] group, input wire [PE*AW-1:0] bias,
  input wire [IN*XW-1:0] s_data, input wire s_valid, output wire s_ready,
  output wire [PE*AW-1:0] m_data, output reg m_valid, input wire m_ready
);
  localparam PW = XW + WW, H = PER > 1 ? $clog2(PER) : 0, TW = PW + H, SB = SF > 1 ? $clog2(SF) : 1;
  localparam T = H > 1 ? (H + 1)/2 : 1;  // registers of a sum of products, one for two rows of adders
  localparam D = WW > 4 ? (WW + 1)/3 : 1, L = T + D + 2;  // stages: operands, products, their sums
  assign go = ~m_valid | m_ready;
  assign s_ready = go;
  reg [SB-1:0] beat;
  reg [IN*XW-1:0] early, x;
  reg [PE*PER*WW-1:0] w;
  reg [PE*AW-1:0] begin_with;
  reg [L-1:0] live, head, tail;
  wire last = beat == SF - 1;
  always @(posedge clk) begin
    if (go) begin
      early <= s_data;
      x <= early;
      w <= weights;
      begin_with <= bias;
      live <= {live[L-2:0], s_valid};
      head <= {head[L-2:0], beat == 0};
      tail <= {tail[L-2:0], last};
      if (s_valid) begin
        beat <= last ? 0 : beat + 1'b1;
        at <= at == SF*NF - 1 ? 0 : at + 1'b1;
      end
      if (live[L-3] & tail[L-3]) group <= group == NF - 1 ? 0 : group + 1'b1;
      m_valid <= live[L-1] & tail[L-1];
    end
    if (reset) begin at <= 0; beat <= 0; group <= 0; live <= 0; m_valid <= 1'b0; end
  end
  genvar p, i;
  generate for (p = 0; p < PE; p = p + 1) begin : unit
    wire [PER*PW-1:0] products;
    for (i = 0; i < PER; i = i + 1) begin : lane
      chop_product #(.XW(XW), .XS(XS), .WW(WW), .D(D)) product (.clk(clk), .reset(reset), .go(go),
        .x(x[(LANES != 0 ? p*PER + i : i)*XW +: XW]), .w(w[(p*PER + i)*WW +: WW]),
        .y(products[i*PW +: PW]));
    end
    wire [TW-1:0] tree;
    reg [TW-1:0] total;
    chop_tree #(.N(PER), .B(PW), .T(TW), .H(H)) adders (.clk(clk), .go(go), .x(products), .y(tree));
    if (H == 0 | H % 2 == 1) begin : registered
      always @(posedge clk) if (go) total <= tree;
    end else begin : direct
      always @* total = tree;
    end
    chop_sum #(.B(TW), .AW(AW)) sum (.clk(clk), .go(go & live[L-1]), .head(head[L-1]), .x(total),
      .bias(begin_with[p*AW +: AW]), .y(m_data[p*AW +: AW]));
  end endgenerate
endmodule

// The product of a code and a signed constant, a row of adders for each bit of it and a register after
// every three. Registers have a reset lest tools make shift registers of look-up tables of them.
module chop_product #(
  parameter XW = 4, parameter XS = 0, parameter WW = 4, parameter D = WW > 4 ? (WW + 1)/3 : 1
) (
  input wire clk, input wire reset, input wire go, input wire [XW-1:0] x, input wire [WW-1:0] w,
  output reg [XW+WW-1:0] y
);
  localparam S = XW + 1;
  genvar s, j;
  generate for (s = 0; s < D; s = s + 1) begin : stage
    localparam FIRST = (s*WW + D - 1)/D, END = ((s + 1)*WW + D - 1)/D;
    wire [XW-1:0] code;
    wire [WW-1:0] bits, low, ends;  // of the constant; last bits of the rows before, and with these
    wire [S-1:0] above_all;
    if (s == 0) begin : given
      assign code = x;
      assign bits = w;
      assign low = {WW{1'b0}};
      assign above_all = {S{1'b0}};
    end else begin : later
      reg [2*WW+XW+S-1:0] held;
      always @(posedge clk)
        if (reset) held <= 0;
        else if (go) held <= {stage[s-1].code, stage[s-1].bits, stage[s-1].ends,
                              stage[s-1].row[FIRST-1].sum};
      assign {code, bits, low, above_all} = held;
    end
    wire [S-1:0] wide = {XS != 0 & code[XW-1], code};
    for (j = FIRST; j < END; j = j + 1) begin : row
      wire [S-1:0] sum, above;
      if (j == FIRST) begin : next_cycle
        assign above = above_all;
      end else begin : same_cycle
        assign above = row[j-1].sum;
      end
      if (j == 0 & WW > 1) begin : alone
        assign sum = wide & {S{bits[0]}};
      end else begin : added
        chop_row #(.B(S), .XS(XS), .MINUS(j == WW - 1)) adder (
          .a(above[S-1:1]), .x(wide), .b(bits[j]), .y(sum));
      end
    end
    for (j = 0; j < WW; j = j + 1) begin : last
      if (j >= FIRST & j < END) begin : own
        assign ends[j] = row[j].sum[0];
      end else begin : other
        assign ends[j] = low[j];
      end
    end
  end endgenerate
  always @(posedge clk)
    if (go) y <= {stage[D-1].row[WW-1].sum[S-1:1], stage[D-1].ends};
endmodule

// a plus x, or minus x, if b is set: one look-up table for each bit, if a is what enters the carry
// chain. Yosys puts the narrower operand there, and of equal ones that with the smaller hash.
module chop_row #(parameter B = 4, parameter XS = 0, parameter MINUS = 0) (
  input wire [B-2:0] a, input wire [B-1:0] x, input wire b, output wire [B-1:0] y
);
  wire [B-1:0] chosen = x & {B{b}};
  generate if (MINUS != 0) begin : minus
    assign y = {XS != 0 & a[B-2], a} - chosen;
  end else if (XS != 0) begin : signed_plus
    assign y = $signed(a) + $signed(chosen);
  end else begin : plus
    assign y = a + chosen;
  end endgenerate
endmodule

// Sums that begin with a bias.
module chop_sum #(parameter B = 4, parameter AW = 8) (
  input wire clk, input wire go, input wire head, input wire [B-1:0] x, input wire [AW-1:0] bias,
  output reg [AW-1:0] y
);
  wire [AW-1:0] base = head ? bias : y;
  wire [AW-1:0] more = {{(AW > B ? AW - B : 1){x[B-1]}}, x};
  always @(posedge clk) if (go) y <= more + base;
endmodule

// The sum of N signed numbers of B bits in H rows of adders, with a register after each second one.
module chop_tree #(parameter N = 2, parameter B = 8, parameter T = 9, parameter H = 1) (
  input wire clk, input wire go, input wire [N*B-1:0] x, output wire [T-1:0] y
);
  wire [T-1:0] sum;
  generate if (H == 0) begin : leaf
    assign sum = {{(T > B ? T - B : 1){x[B-1]}}, x};
  end else if (N == 1) begin : one
    chop_tree #(.N(N), .B(B), .T(T), .H(H - 1)) later (.clk(clk), .go(go), .x(x), .y(sum));
  end else begin : two
    localparam M = N / 2;
    localparam TA = B + (M > 1 ? $clog2(M) : 0), TB = B + (N - M > 1 ? $clog2(N - M) : 0);
    wire [TA-1:0] a;
    wire [TB-1:0] b;
    chop_tree #(.N(M), .B(B), .T(TA), .H(H - 1)) low (
      .clk(clk), .go(go), .x(x[M*B-1:0]), .y(a));
    chop_tree #(.N(N - M), .B(B), .T(TB), .H(H - 1)) high (
      .clk(clk), .go(go), .x(x[N*B-1:M*B]), .y(b));
    assign sum = {{(T - TA){a[TA-1]}}, a} + {{(T - TB){b[TB-1]}}, b};
  end
  if (H > 0 & H % 2 == 0) begin : registered
    reg [T-1:0] held;
    always @(posedge clk) if (go) held <= sum;
    assign y = held;
  end else begin : direct
    assign y = sum;
  end endgenerate
endmodule

// The largest or the sum of each window of KH x KW pixels, side by side; CF beats for a pixel.
module chop_pool #(
  parameter L = 1, parameter XW = 4, parameter XS = 0, parameter AW = 4, parameter MAX = 1,
  parameter CF = 1, parameter H = 4, parameter W = 4, parameter KH = 2, parameter KW = 2
) (
  input wire clk, input wire reset,
  input wire [L*XW-1:0] s_data, input wire s_valid, output wire s_ready,
  output reg [L*AW-1:0] m_data, output reg m_valid, input wire m_ready
);
  localparam OW = W / KW, OH = H / KH, D = OW*CF, A = D > 1 ? $clog2(D) : 1;
  localparam NX = $clog2(W + 1), NY = $clog2(H + 1), NC = $clog2(CF + 1);
  (* ram_style = "distributed" *) reg [L*AW-1:0] memory [0:(1 << A) - 1];  // read at once
  reg [A-1:0] at, line;  // `line` is the first place of this window
  reg [NC-1:0] cf;
  reg [NX-1:0] kx, x;
  reg [NY-1:0] ky, y;
  wire go = ~m_valid | m_ready;
  assign s_ready = go;
  wire [L*AW-1:0] old = memory[at];
  wire [L*AW-1:0] made;
  wire head = kx == 0 & ky == 0, used = x < OW*KW & y < OH*KH;
  wire cf_end = cf == CF - 1, kx_end = kx == KW - 1, ky_end = ky == KH - 1;
  wire x_end = x == W - 1, y_end = y == H - 1;
  genvar g;
  generate for (g = 0; g < L; g = g + 1) begin : lane
    wire signed [AW:0] a = {{(AW + 1 - XW){XS != 0 & s_data[g*XW + XW - 1]}}, s_data[g*XW +: XW]};
    wire signed [AW:0] b = {XS != 0 & old[g*AW + AW - 1], old[g*AW +: AW]};
    wire [AW-1:0] both = MAX == 0 ? b + a : a > b ? a : b;
    assign made[g*AW +: AW] = head ? a : both;
  end endgenerate
  always @(posedge clk) begin
    if (go) begin
      m_valid <= s_valid & used & kx_end & ky_end;
      m_data <= made;
    end
    if (go & s_valid) begin
      if (used) memory[at] <= made;
      cf <= cf_end ? 0 : cf + 1'b1;
      at <= ~cf_end ? at + 1'b1 : x_end ? 0 : kx_end ? at + 1'b1 : line;
      if (cf_end & (kx_end | x_end)) line <= x_end ? 0 : at + 1'b1;
      if (cf_end) begin
        kx <= kx_end | x_end ? 0 : kx + 1'b1;
        x <= x_end ? 0 : x + 1'b1;
      end
      if (cf_end & x_end) begin
        ky <= ky_end | y_end ? 0 : ky + 1'b1;
        y <= y_end ? 0 : y + 1'b1;
      end
    end
    if (reset) begin
      at <= 0; line <= 0; cf <= 0; kx <= 0; x <= 0; ky <= 0; y <= 0; m_valid <= 1'b0;
    end
  end
endmodule

// One stream for N readers, each at its own pace.
module chop_fork #(parameter B = 8, parameter N = 2) (
  input wire clk, input wire reset,
  input wire [B-1:0] s_data, input wire s_valid, output wire s_ready,
  output wire [B-1:0] m_data, output wire [N-1:0] m_valid, input wire [N-1:0] m_ready
);
  reg [N-1:0] done;
  wire [N-1:0] now = done | m_ready;
  assign m_data = s_data;
  assign m_valid = {N{s_valid}} & ~done;
  assign s_ready = &now;
  always @(posedge clk) done <= reset | ~s_valid | s_ready ? {N{1'b0}} : now;
endmodule

// a * FA + b * FB, element by element, of two streams.
module chop_add #(
  parameter L = 1, parameter AW = 4, parameter AS = 0, parameter BW = 4, parameter BS = 0,
  parameter YW = 6, parameter FA = 1, parameter FB = 1
) (
  input wire clk, input wire reset,
  input wire [L*AW-1:0] a_data, input wire a_valid, output wire a_ready,
  input wire [L*BW-1:0] b_data, input wire b_valid, output wire b_ready,
  output reg [L*YW-1:0] m_data, output reg m_valid, input wire m_ready
);
  wire go = ~m_valid | m_ready;
  assign a_ready = go & b_valid;
  assign b_ready = go & a_valid;
  genvar g;
  generate for (g = 0; g < L; g = g + 1) begin : lane
    wire signed [YW-1:0] a = $signed({AS != 0 & a_data[g*AW + AW - 1], a_data[g*AW +: AW]});
    wire signed [YW-1:0] b = $signed({BS != 0 & b_data[g*BW + BW - 1], b_data[g*BW +: BW]});
    always @(posedge clk) if (go) m_data[g*YW +: YW] <= a * FA + b * FB;
  end endgenerate
  always @(posedge clk) if (reset) m_valid <= 1'b0; else if (go) m_valid <= a_valid & b_valid;
endmodule

// The channels of both streams in one beat.
module chop_beside #(parameter BA = 8, parameter BB = 8) (
  input wire [BA-1:0] a_data, input wire a_valid, output wire a_ready,
  input wire [BB-1:0] b_data, input wire b_valid, output wire b_ready,
  output wire [BA+BB-1:0] m_data, output wire m_valid, input wire m_ready
);
  assign m_data = {b_data, a_data};
  assign m_valid = a_valid & b_valid;
  assign a_ready = m_valid & m_ready;
  assign b_ready = m_valid & m_ready;
endmodule

// NA beats of one stream, then NB of another: the channels of both for each pixel.
module chop_concat #(parameter B = 8, parameter NA = 1, parameter NB = 1) (
  input wire clk, input wire reset,
  input wire [B-1:0] a_data, input wire a_valid, output wire a_ready,
  input wire [B-1:0] b_data, input wire b_valid, output wire b_ready,
  output wire [B-1:0] m_data, output wire m_valid, input wire m_ready
);
  reg [$clog2(NA + NB)-1:0] count;
  wire second = count >= NA;
  assign m_data = second ? b_data : a_data;
  assign m_valid = second ? b_valid : a_valid;
  assign a_ready = ~second & m_ready;
  assign b_ready = second & m_ready;
  always @(posedge clk)
    if (reset) count <= 0;
    else if (m_valid & m_ready) count <= count == NA + NB - 1 ? 0 : count + 1'b1;
endmodule

// The handshake of a memory that is read in one cycle.
module chop_lookup #(parameter B = 8) (
  input wire clk, input wire reset, output wire go,
  input wire s_valid, output wire s_ready, output reg m_valid, input wire m_ready
);
  assign go = ~m_valid | m_ready;
  assign s_ready = go;
  always @(posedge clk) if (reset) m_valid <= 1'b0; else if (go) m_valid <= s_valid;
endmodule

// High with the last of BEATS beats.
module chop_last #(parameter BEATS = 1) (
  input wire clk, input wire reset, input wire moved, output wire last
);
  reg [$clog2(BEATS + 1)-1:0] count;
  assign last = count == BEATS - 1;
  always @(posedge clk) if (reset) count <= 0; else if (moved) count <= last ? 0 : count + 1'b1;
endmodule
`default_nettype wire
