// Blank or work on uWebSockets, with simdjson: uwebsockets-http PORT blank|work
#include "App.h"
#include <simdjson.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

using namespace std::chrono;
using Moment = sys_time<milliseconds>;

static std::optional<int> number(std::string_view text, size_t at, size_t length) {
    int value = 0;
    auto [end, error] = std::from_chars(text.data() + at, text.data() + at + length, value);
    if (error != std::errc() || end != text.data() + at + length) return std::nullopt;
    return value;
}

// YYYY-MM-DDTHH:MM:SS.mmmZ
static std::optional<Moment> moment(std::string_view text) {
    if (text.size() != 24 || text[4] != '-' || text[7] != '-' || text[10] != 'T' || text[13] != ':'
        || text[16] != ':' || text[19] != '.' || text[23] != 'Z') return std::nullopt;
    auto y = number(text, 0, 4), m = number(text, 5, 2), d = number(text, 8, 2), h = number(text, 11, 2),
         min = number(text, 14, 2), s = number(text, 17, 2), ms = number(text, 20, 3);
    if (!y || !m || !d || !h || !min || !s || !ms || *h > 23 || *min > 59 || *s > 59) return std::nullopt;
    year_month_day date{year(*y), month(unsigned(*m)), day(unsigned(*d))};
    if (!date.ok()) return std::nullopt;
    return sys_days(date) + hours(*h) + minutes(*min) + seconds(*s) + milliseconds(*ms);
}

static void print(std::string &out, Moment at) {
    auto days = floor<std::chrono::days>(at);
    year_month_day date(days);
    hh_mm_ss time(at - days);
    char text[32];
    snprintf(text, sizeof text, "%04d-%02u-%02uT%02d:%02d:%02d.%03dZ", int(date.year()), unsigned(date.month()),
        unsigned(date.day()), int(time.hours().count()), int(time.minutes().count()), int(time.seconds().count()),
        int(time.subseconds().count()));
    out += text;
}

static void quote(std::string &out, std::string_view text) {
    out += '"';
    for (char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if ((unsigned char) c < 0x20) {
            char escape[8];
            snprintf(escape, sizeof escape, "\\u%04x", c);
            out += escape;
        } else {
            out += c;
        }
    }
    out += '"';
}

static std::optional<std::string> answer(const std::string &body) {
    static simdjson::dom::parser parser;
    simdjson::dom::element root;
    std::string_view product, id;
    double balance;
    simdjson::dom::array dates;
    if (parser.parse(body).get(root) || root["product"].get(product) || root["requestId"].get(id)
        || root["group"]["balance"].get(balance) || root["group"]["dates"].get(dates)) return std::nullopt;
    std::optional<Moment> least, greatest;
    for (auto element : dates) {
        std::string_view text;
        if (element.get(text)) return std::nullopt;
        auto at = moment(text);
        if (!at) return std::nullopt;
        if (!least || *at < *least) least = at;
        if (!greatest || *at > *greatest) greatest = at;
    }
    if (!least) return std::nullopt;
    char digits[32];
    auto [end, error] = std::to_chars(digits, digits + sizeof digits, balance);
    if (error != std::errc()) return std::nullopt;
    std::string out;
    out.reserve(160 + product.size() + id.size());
    out += "{\"product\":";
    quote(out, product);
    out += ",\"requestId\":";
    quote(out, id);
    out += ",\"client\":{\"balance\":";
    out.append(digits, end);
    out += ",\"minDate\":\"";
    print(out, *least);
    out += "\",\"maxDate\":\"";
    print(out, *greatest);
    out += "\"}}";
    return out;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int port = atoi(argv[1]);
    uWS::App app;
    if (std::string_view(argv[2]) == "work") {
        app.any("/*", [](auto *res, auto *) {
            res->onAborted([]() {});
            res->onData([res, body = std::string()](std::string_view part, bool last) mutable {
                body.append(part);
                if (!last) return;
                if (auto text = answer(body)) {
                    res->writeHeader("Content-Type", "application/json")->end(*text);
                } else {
                    res->writeStatus("400 Bad Request")->end("this is not the benchmark's document\n");
                }
            });
        });
    } else {
        app.any("/*", [](auto *res, auto *) { res->writeHeader("Content-Type", "text/plain")->end("OK"); });
    }
    app.listen("127.0.0.1", port, [port](auto *listener) {
        if (!listener) {
            fprintf(stderr, "uwebsockets-http: cannot listen on port %d\n", port);
            exit(1);
        }
    }).run();
}
