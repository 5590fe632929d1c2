// Entry points for streams, graphs and events. A stream is a queue of operations that run when somebody waits for them.
#include "driver.h"
#include <ctime>
#include <deque>
#include <set>
#include <thread>

namespace driver {

struct Stream {
    std::deque<Operation> waiting;
    Graph* captured = nullptr;
    std::thread::id capturing_thread;
};

struct Event {
    Stream* stream = nullptr;
    std::shared_ptr<bool> reached = std::make_shared<bool>(true);
    double at_ms = 0;
};

static Stream default_stream;
static std::set<Stream*> streams;
static Result sticky = SUCCESS;

static Stream* stream_of(void* handle) {
    return handle ? static_cast<Stream*>(handle) : &default_stream;
}

Result first_error() {
    return sticky;
}

void forget_errors() {
    sticky = SUCCESS;
}

Result finish(Stream* handle) {
    Stream* stream = stream_of(handle);
    while (!stream->waiting.empty()) {
        Operation next = std::move(stream->waiting.front());
        stream->waiting.pop_front();
        // Behind an error nothing runs any more.
        if (sticky == SUCCESS) sticky = next();
    }
    return sticky;
}

Result finish_all() {
    finish(nullptr);
    for (Stream* stream : streams) finish(stream);
    return sticky;
}

Result queue(void* handle, Operation operation) {
    Stream* stream = stream_of(handle);
    if (sticky != SUCCESS) return sticky;
    // A thread works on the device that it has bound, not on the one of the stream.
    if (!current_device()) return INVALID_CONTEXT;
    if (stream->captured) {
        stream->captured->operations.push_back(std::move(operation));
        return SUCCESS;
    }
    stream->waiting.push_back(std::move(operation));
    return options.lazy ? SUCCESS : finish(stream);
}

bool capturing(void* handle) {
    return stream_of(handle)->captured;
}

bool refused_in_capture(const char* function) {
    for (Stream* stream : streams)
        if (stream->captured && stream->capturing_thread == std::this_thread::get_id()) {
            complain("%s while a stream is being captured", function);
            return true;
        }
    return false;
}

static double now_ms() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec * 1e-6;
}

} // namespace driver

using namespace driver;

API Result cuStreamCreate(void** made, unsigned) {
    ENTER;
    if (!current_device()) return INVALID_CONTEXT;
    *made = *streams.insert(new Stream).first;
    return SUCCESS;
}

API Result cuStreamCreateWithPriority(void** made, unsigned flags, int) {
    return cuStreamCreate(made, flags);
}

API Result cuStreamDestroy_v2(void* stream) {
    ENTER;
    Result result = finish(stream_of(stream));
    streams.erase(stream_of(stream));
    delete static_cast<Stream*>(stream);
    return result;
}

API Result cuStreamSynchronize(void* stream) {
    ENTER;
    if (capturing(stream)) return STREAM_CAPTURE_UNSUPPORTED;
    return finish(stream_of(stream));
}

API Result cuStreamQuery(void* stream) {
    ENTER;
    return stream_of(stream)->waiting.empty() ? first_error() : NOT_READY;
}

API Result cuStreamWaitEvent(void* stream, void* handle, unsigned) {
    ENTER;
    if (capturing(stream)) return SUCCESS;
    auto event = static_cast<Event*>(handle);
    return queue(stream, [=] { return *event->reached ? SUCCESS : finish(event->stream); });
}

API Result cuStreamIsCapturing(void* stream, int* status) {
    ENTER;
    *status = capturing(stream);
    return SUCCESS;
}

API Result cuStreamBeginCapture_v2(void* stream, int) {
    ENTER;
    if (!stream || capturing(stream)) return ILLEGAL_STATE;
    // What was queued before is no part of the graph.
    Result result = finish(stream_of(stream));
    stream_of(stream)->captured = new Graph;
    stream_of(stream)->capturing_thread = std::this_thread::get_id();
    return result;
}

API Result cuStreamEndCapture(void* stream, void** graph) {
    ENTER;
    if (!capturing(stream)) return ILLEGAL_STATE;
    *graph = stream_of(stream)->captured;
    stream_of(stream)->captured = nullptr;
    return SUCCESS;
}

API Result cuGraphInstantiateWithFlags(void** made, void* graph, unsigned long long) {
    ENTER;
    *made = new Graph(*static_cast<Graph*>(graph));
    return SUCCESS;
}

API Result cuGraphUpload(void*, void*) {
    ENTER;
    return SUCCESS;
}

API Result cuGraphLaunch(void* graph, void* stream) {
    ENTER;
    for (const Operation& operation : static_cast<Graph*>(graph)->operations)
        if (Result result = queue(stream, operation)) return result;
    return SUCCESS;
}

API Result cuGraphDestroy(void* graph) {
    ENTER;
    delete static_cast<Graph*>(graph);
    return SUCCESS;
}

API Result cuGraphExecDestroy(void* graph) {
    return cuGraphDestroy(graph);
}

API Result cuEventCreate(void** made, unsigned) {
    ENTER;
    *made = new Event;
    return SUCCESS;
}

API Result cuEventDestroy_v2(void* event) {
    ENTER;
    Result result = finish_all();
    delete static_cast<Event*>(event);
    return result;
}

API Result cuEventRecord(void* handle, void* stream) {
    ENTER;
    if (capturing(stream)) return SUCCESS;
    auto event = static_cast<Event*>(handle);
    auto reached = std::make_shared<bool>(false);
    event->stream = stream_of(stream);
    event->reached = reached;
    return queue(stream, [=] {
        *reached = true;
        event->at_ms = now_ms();
        return SUCCESS;
    });
}

API Result cuEventQuery(void* event) {
    ENTER;
    return *static_cast<Event*>(event)->reached ? SUCCESS : NOT_READY;
}

API Result cuEventSynchronize(void* handle) {
    ENTER;
    auto event = static_cast<Event*>(handle);
    return *event->reached ? first_error() : finish(event->stream);
}

API Result cuEventElapsedTime(float* ms, void* from, void* to) {
    ENTER;
    if (!*static_cast<Event*>(to)->reached) return NOT_READY;
    *ms = static_cast<Event*>(to)->at_ms - static_cast<Event*>(from)->at_ms;
    return SUCCESS;
}

API Result cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
    ENTER;
    return queue(stream, [=] { return function(argument), SUCCESS; });
}
